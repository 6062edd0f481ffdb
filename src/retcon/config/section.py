"""Base classes and field types of recipe sections.

A section that can be of several kinds (`[repair] kind = "saar"`) has a base class in `retcon.config.schema`, with the
keys that all kinds share, and a subclass for each kind, with that kind's own keys and its builder. Each subclass is
alone in a file of its package's folder (`retcon/purify/kinds/saar.py`): to add a kind is to add a file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, GetCoreSchemaHandler, ValidationInfo
from pydantic_core import CoreSchema, InitErrorDetails, PydanticCustomError, ValidationError, core_schema

from retcon.core.errors import RecipeError
from retcon.core.registry import PluginNames, Registry
from retcon.core.texts import is_url

if TYPE_CHECKING:
    from retcon.config.schema import Recipe

Probability = Annotated[float, Field(ge=0, le=1)]
Positive = Annotated[int, Field(ge=1)]
NonNegative = Annotated[int, Field(ge=0)]
Rate = Annotated[float, Field(gt=0)]

Schedule = Literal["constant", "linear", "cosine"]
"""Learning rate after its warm-up: constant, or falling to 0 in a line or half a cosine."""

Aggregate = Literal["token", "sequence"] | int
"""Averaging of a loss. `token`: all tokens of the minibatch (DAPO, arXiv 2503.14476, equation 8). `sequence`:
each sequence's tokens, then sequences (GRPO, arXiv 2402.03300, equation 3). A number: each sequence's sum is divided by
it, then the mean over sequences (Dr. GRPO, arXiv 2503.20783, section 3.2)."""


def _one_or_several(value: object) -> object:
    return (value,) if isinstance(value, str) else tuple(value) if isinstance(value, list) else value


StrList = Annotated[tuple[str, ...], BeforeValidator(_one_or_several)]
"""Strings; a single one is read as a list of one."""


def plugin_names(kind: str, *besides: str) -> AfterValidator:
    """Return a validator of plug-in names that imports nothing; `besides` are allowed too."""

    registry = PluginNames(kind, besides=besides)

    def check(value: Any) -> Any:
        for name in [value] if isinstance(value, str) else value:
            try:
                registry.check(name)
            except RecipeError as error:
                raise ValueError(str(error)) from None
        return value

    return AfterValidator(check)


def server_urls(value: tuple[str, ...]) -> tuple[str, ...]:
    """Return server URLs unchanged. Raises ValueError for any other text."""
    for url in value:
        if not is_url(url):
            raise ValueError(f"'{url}' is not the URL of a server: write it as http://host:port")
    return value


def api_url(value: str) -> str:
    """Return an API's URL unchanged. Raises ValueError unless it is empty or an HTTP URL."""
    if value and not is_url(value):
        raise ValueError("it is not the URL of a server: write it as http://host:port/v1")
    return value


Work = Literal["sft", "dpo", "rl", "demonstrations"]
"""Results that depend on parts of a recipe: runs of each kind, and the demonstrations that a run learns from."""


class Section(BaseModel):
    """Immutable section of a recipe; unknown keys are errors.

    resume_keys: the keys on which each kind of work depends, None for all: after a change of one, a run cannot be
    resumed, and demonstrations are made anew. resume_ignores: keys of where and how fast work is done, which do not
    affect its results: a run may resume with others. mechanisms: key to a sentence that is true of a run in which the
    key's mechanism never acted, then the metrics of a step that count its actions.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True, allow_inf_nan=False)
    resume_keys: ClassVar[Mapping[Work, tuple[str, ...] | None]] = {}
    resume_ignores: ClassVar[tuple[str, ...]] = ()
    mechanisms: ClassVar[Mapping[str, tuple[str, ...]]] = {}

    def keys_for(self, work: Work) -> tuple[str, ...]:
        """Return the keys on which `work` depends."""
        if work not in self.resume_keys:
            return ()
        keys = self.resume_keys[work] or tuple(type(self).model_fields)
        return tuple(key for key in keys if key not in self.resume_ignores)

    @classmethod
    def with_changes(cls, keys: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
        """Return this section's keys with changes; a new kind drops the keys that it lacks."""
        return {**keys, **changes}

    def check(self, recipe: Recipe) -> None:
        """Raise ValueError, "`section`: …", where this section contradicts others."""


class PluginSection(Section):
    """Section with several kinds, chosen by one of its keys.

    A direct subclass has the keys that all kinds share, and names its kind of plug-in (`retcon.core.registry.FOLDERS`).
    A recipe's field of that type (`PluginField`) is read as the named kind, with that kind's keys and no others.
    """

    kinds: ClassVar[Registry[Any]]
    chosen_by: ClassVar[str]

    def __init_subclass__(cls, *, plugin: str = "", chosen_by: str = "kind", **options: Any) -> None:
        super().__init_subclass__(**options)
        if plugin:
            cls.kinds, cls.chosen_by = Registry(plugin, base=cls), chosen_by

    @classmethod
    def __pydantic_init_subclass__(cls, **options: Any) -> None:
        """Set the default of the key that chooses the kind to this class's own."""
        if cls is not cls.kinds.base:
            cls.model_fields[cls.chosen_by].default = cls.kinds.name_of(cls)
            cls.model_rebuild(force=True)

    @classmethod
    def kind_in(cls, keys: Mapping[str, Any]) -> type[Self]:
        """Return the class that these keys choose. Raises RecipeError for an unknown kind."""
        named = keys.get(cls.chosen_by, cls.model_fields[cls.chosen_by].default)
        if not isinstance(named, str):
            raise RecipeError(f"it must be a name: {', '.join(cls.kinds.names)}, or an import path")
        return cls.kinds.find(named)

    def lacks(self, method: str) -> RecipeError:
        """Return the error for a kind without a required method."""
        return RecipeError(f"{self.kinds.what} '{getattr(self, self.chosen_by)}' has no {method}: CONTRIBUTING.md says "
                           "under \"Adding something\" what each has")  # fmt: skip

    @classmethod
    def with_changes(cls, keys: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
        if cls.chosen_by in changes:
            with suppress(RecipeError):  # an unknown kind, reported when the section is read
                fields = cls.kind_in(changes).model_fields
                keys = {key: value for key, value in keys.items() if key in fields}
        return {**keys, **changes}


class PluginField:
    """Annotation of a recipe's field typed as a direct subclass of `PluginSection`."""

    def __get_pydantic_core_schema__(self, source: type[PluginSection], handler: GetCoreSchemaHandler) -> CoreSchema:
        def read(value: object, info: ValidationInfo) -> PluginSection:
            if isinstance(value, source):
                return value
            if not isinstance(value, Mapping):
                raise PydanticCustomError("section", "a table of keys belongs here")
            try:
                kind = source.kind_in(value)
            except RecipeError as error:
                raise _at(source.chosen_by, value.get(source.chosen_by), error) from error
            if info.mode == "json":  # again from JSON: strict Python mode refuses an array as a tuple
                return kind.model_validate_json(json.dumps(value), strict=True)
            return kind.model_validate(value)

        return core_schema.with_info_plain_validator_function(
            read, serialization=core_schema.plain_serializer_function_ser_schema(_dump, info_arg=True)
        )


def _dump(section: PluginSection, info: core_schema.SerializationInfo) -> dict[str, Any]:
    """Dump a section, with its kind even where that was not set."""
    kind = {section.chosen_by: getattr(section, section.chosen_by)}
    return {**kind, **section.model_dump(mode=info.mode, exclude_unset=info.exclude_unset)}


def _at(key: str, value: object, error: RecipeError) -> ValidationError:
    """Return the error as pydantic's error at this key."""
    kind = PydanticCustomError("kind", "{reason}", {"reason": str(error)})
    return ValidationError.from_exception_data("section", [InitErrorDetails(type=kind, loc=(key,), input=value)])
