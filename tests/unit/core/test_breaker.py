"""When a server that failed is asked again."""

from __future__ import annotations

from retcon.http.client import CircuitBreaker


def test_after_a_fault_one_request_probes_and_its_answer_opens() -> None:
    breaker = CircuitBreaker(1.0, 8.0)
    breaker.record_request(0.0)
    assert breaker.allows(0.5)
    breaker.record_failure(1.0)
    assert (breaker.allows(1.9), breaker.is_resting(1.9), breaker.allows(2.0)) == (False, True, True)
    breaker.record_success(1.5)
    assert not breaker.allows(1.9), "that was asked before the fault"
    breaker.record_request(2.0)
    assert (breaker.allows(9.9), breaker.is_resting(9.9)) == (False, False), "the others wait for the probe"
    breaker.record_success(2.1)
    assert (breaker.allows(2.1), breaker.faults) == (True, 0)


def test_faults_of_requests_from_before_the_last_fault_are_one() -> None:
    breaker = CircuitBreaker(1.0, 8.0)
    for late in range(50):
        breaker.record_failure(1.0 + late / 100)
    assert (breaker.faults, breaker.until) == (1, 2.0)


def test_a_probe_that_takes_long_does_not_keep_others_out() -> None:
    breaker = CircuitBreaker(1.0, 8.0)
    breaker.record_failure(1.0)
    breaker.record_request(2.0)
    assert breaker.allows(10.0)
    breaker.record_request(10.0)
    assert breaker.allows(10.0), "it has not failed at once"
    breaker.record_failure(11.0)
    assert breaker.until == 13.0, "the next pause is longer"
