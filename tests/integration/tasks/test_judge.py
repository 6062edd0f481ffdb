"""A model as judge, over HTTP: a server that answers as it is told."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from retcon.core.errors import EngineError, InfrastructureFault
from retcon.tasks.graders.judge import JudgeGrader, JudgeSettings
from retcon.tasks.grading.grading import GradeSettings, Grading
from retcon.tasks.grading.registry import Outcome, Reply, Verdict
from retcon.tasks.types import Task
from servers.answering import Answer, serving

TASK = Task("t/0", r"what is \frac{1}{2} + {reply}?", "the answer")
KEY = "sk-very-secret"


class Judge(ThreadingHTTPServer):
    """answers: (status, content), the last of them for ever; a status of 0 hangs up."""

    def __init__(self, *answers: tuple[int, Any]) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.answers = list(answers)
        self.asked: list[tuple[str, str, dict[str, Any]]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"


class Handler(BaseHTTPRequestHandler):
    server: Judge

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.asked.append((self.path, self.headers.get("Authorization", ""), body))
        status, content = self.server.answers.pop(0) if len(self.server.answers) > 1 else self.server.answers[0]
        if not status:
            self.close_connection = True
            return
        message = {"choices": [{"message": {"role": "assistant", "content": content}}]}
        data = json.dumps(message).encode() if status == 200 else str(content).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *args: object) -> None:
        """Quiet."""


@pytest.fixture
def serve() -> Iterator[Any]:
    servers: list[Judge] = []

    def start(*answers: tuple[int, Any]) -> Judge:
        servers.append(Judge(*answers))
        threading.Thread(target=servers[-1].serve_forever, args=(0.01,), daemon=True).start()
        return servers[-1]

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def grade(url: str, reply: str = "so it is 1", **settings: Any) -> Verdict:
    async def main() -> Verdict:
        grader = JudgeGrader(JudgeSettings(url, "judge-1", **settings), wait=0.001)
        try:
            return await grader.grade(TASK, Reply(reply))
        finally:
            await grader.close()

    return asyncio.run(main())


def test_the_verdict_is_asked_for_and_read(serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", KEY)
    judge = serve((200, "Both say one.\nVERDICT: right"))
    assert grade(judge.url, r"\boxed{1}, {answer} {question}", key_env="MY_KEY") == Verdict(
        1.0, True, "VERDICT: right", "1"
    )
    ((path, authorization, body),) = judge.asked
    assert (path, authorization, body["model"], body["temperature"]) == (
        "/v1/chat/completions", f"Bearer {KEY}", "judge-1", 0.0,
    )  # fmt: skip
    prompt = body["messages"][0]["content"]
    assert r"\boxed{1}, {answer} {question}" in prompt, "what a reply says is not filled in"
    assert TASK.question in prompt
    assert prompt.count(TASK.answer) == 1


def test_scores_are_graded(serve: Any) -> None:
    judge = serve((200, "SCORE: 0.7"))
    assert grade(judge.url, prompt="Score {reply}.", right_from=0.6) == Verdict(0.7, True, "SCORE: 0.7")
    assert not grade(judge.url, prompt="Score {reply}.").right


def test_a_judge_is_asked_as_its_settings_say_and_sees_the_end_of_a_long_reply(serve: Any) -> None:
    judge = serve((200, "VERDICT: right"))
    grade(judge.url, "first words" + "x" * 99 + "last words", reply_chars=12, max_tokens=77, temperature=0.5)
    ((_, _, body),) = judge.asked
    assert (body["max_tokens"], body["temperature"]) == (77, 0.5)
    assert "<reply>\nxxlast words\n</reply>" in body["messages"][0]["content"]


def test_a_task_without_the_answer_that_the_prompt_asks_for_is_refused_by_name() -> None:
    async def checked(**settings: Any) -> None:
        grader = JudgeGrader(JudgeSettings("http://127.0.0.1:1/v1", "judge-1", **settings))
        await grader.check(TASK)
        await grader.check(Task("t/1", "which?", " "))

    with pytest.raises(ValueError, match="task t/1 has an empty answer"):
        asyncio.run(checked())
    asyncio.run(checked(prompt="How good is {reply}?"))


def test_only_the_way_is_tried_again(serve: Any) -> None:
    judge = serve((0, ""), (503, "busy"), (429, "slower"), (200, "VERDICT: wrong"))
    assert grade(judge.url).score == 0.0
    assert len(judge.asked) == 4
    for answers in ((200, "I would say yes."), (200, None), (400, "no such model"), (401, "who?")):
        judge = serve(answers)
        with pytest.raises(InfrastructureFault):
            grade(judge.url)
        assert len(judge.asked) == 1, answers
    judge = serve((502, "down"))
    with pytest.raises(InfrastructureFault, match="does not answer: status 502: down"):
        grade(judge.url, attempts=3)
    assert len(judge.asked) == 3


def test_a_judge_whose_reasoning_takes_all_tokens_is_warned_about() -> None:
    cut = Answer({"choices": [{"message": {"content": None, "reasoning": "Hm"}, "finish_reason": "length"}]})
    with serving(lambda _: cut) as judge, pytest.raises(InfrastructureFault, match="max_tokens end before its reason"):
        grade(judge.url)


def test_the_key_is_never_told(serve: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv("MY_KEY", KEY)
    judge = serve((401, f"wrong key {KEY}"))
    settings = JudgeSettings(judge.url, "judge-1", key_env="MY_KEY")
    with caplog.at_level(logging.DEBUG), pytest.raises(InfrastructureFault, match="wrong key …") as raised:
        grade(judge.url, key_env="MY_KEY")
    assert KEY not in f"{raised.value}{caplog.text}{settings}"


def graded_by(url: str) -> Outcome:
    async def main() -> Outcome:
        options = {"judge": {"url": url, "model": "judge-1", "attempts": 1}}
        async with Grading(GradeSettings("judge", options=options)) as grading:
            return await grading.outcome(TASK, Reply("so it is 1"))

    return asyncio.run(main())


def test_a_judge_that_cannot_be_had_ends_the_work_and_is_named(serve: Any) -> None:
    judge = serve((404, "no model judge-1"))
    with pytest.raises(EngineError, match=f"grader judge: the judge at {judge.url}: status 404: no model judge-1"):
        graded_by(judge.url)
    judge.shutdown()
    judge.server_close()
    with pytest.raises(EngineError, match=f"grader judge: the judge at {judge.url} does not answer: ClientConnector"):
        graded_by(judge.url)
