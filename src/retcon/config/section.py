"""What sections of a recipe are made of; those of one kind among several lie beside what they build.

A section that can be of several kinds (`[repair] kind = "saar"`) has a base class in `retcon.config.schema`, with the
keys that all kinds share, and a subclass for each kind, with that kind's own keys and what builds it. Each is the only
one in a file of its room's folder (`retcon/purify/kinds/saar.py`): to add a kind is to add a file.
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
"""What a learning rate does once it has risen: stays, or falls to 0 in a line or half a cosine."""

Aggregate = Literal["token", "sequence"] | int
"""What a loss is averaged over. `token`: all tokens of the minibatch (DAPO, arXiv 2503.14476, equation 8). `sequence`:
each sequence's tokens, then sequences (GRPO, arXiv 2402.03300, equation 3). A number: each sequence's sum is divided by
it, then the mean over sequences (Dr. GRPO, arXiv 2503.20783, section 3.2)."""


def _one_or_several(value: object) -> object:
    return (value,) if isinstance(value, str) else tuple(value) if isinstance(value, list) else value


Several = Annotated[tuple[str, ...], BeforeValidator(_one_or_several)]
"""Strings; one alone, where a list of them belongs, is a list of one."""


def plugin_names(kind: str, *besides: str) -> AfterValidator:
    """Check one or several names of plug-ins of a kind, without importing them; `besides` are allowed too."""

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
    """The same. Raises ValueError for one that is no URL."""
    for url in value:
        if not is_url(url):
            raise ValueError(f"'{url}' is not the URL of a server: write it as http://host:port")
    return value


def api_url(value: str) -> str:
    """The same. Raises ValueError unless it is empty or a URL of an OpenAI-compatible API."""
    if value and not is_url(value):
        raise ValueError("it is not the URL of a server: write it as http://host:port/v1")
    return value


Work = Literal["sft", "dpo", "rl", "demonstrations"]
"""What depends on parts of a recipe: runs of each kind, and the demonstrations that a run learns from."""


class Section(BaseModel):
    """A section of a recipe: unknown keys are refused, values are fixed once read.

    matters_to: what depends on it, on all of its keys (None) or on some: where one of those changes, a run cannot be
    resumed, and demonstrations are not those that were asked for. immaterial: keys that say where and how fast work is
    done, and nothing of what it comes to: whatever was begun goes on with others. mechanisms: key to what is true of
    a run in which the key's mechanism never acted, then the metrics of a step that count what it does.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True, allow_inf_nan=False)
    matters_to: ClassVar[Mapping[Work, tuple[str, ...] | None]] = {}
    immaterial: ClassVar[tuple[str, ...]] = ()
    mechanisms: ClassVar[Mapping[str, tuple[str, ...]]] = {}

    def keys_for(self, work: Work) -> tuple[str, ...]:
        """The keys that `work` depends on."""
        if work not in self.matters_to:
            return ()
        keys = self.matters_to[work] or tuple(type(self).model_fields)
        return tuple(key for key in keys if key not in self.immaterial)

    @classmethod
    def with_changes(cls, keys: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
        """Keys of this section as they were set, with these changed; where that chooses another kind, without those
        that this kind lacks."""
        return {**keys, **changes}

    def check(self, recipe: Recipe) -> None:
        """Raises ValueError, which begins with `section: `, where this section does not go with the others."""


class Chosen(Section):
    """A section of which there are several kinds; one of its keys names the kind.

    A direct subclass has what all kinds share, and names its kind of plug-in (`retcon.core.registry.FOLDERS`). A field
    of it in a recipe (`OneKind`) is read as the kind that is named, with that kind's keys and no others.
    """

    kinds: ClassVar[Registry[Any]]
    chosen_by: ClassVar[str]

    def __init_subclass__(cls, *, plugin: str = "", chosen_by: str = "kind", **options: Any) -> None:
        super().__init_subclass__(**options)
        if plugin:
            cls.kinds, cls.chosen_by = Registry(plugin, base=cls), chosen_by

    @classmethod
    def __pydantic_init_subclass__(cls, **options: Any) -> None:
        """A section that is made by its class is of that class's kind."""
        if cls is not cls.kinds.base:
            cls.model_fields[cls.chosen_by].default = cls.kinds.name_of(cls)
            cls.model_rebuild(force=True)

    @classmethod
    def kind_in(cls, keys: Mapping[str, Any]) -> type[Self]:
        """The class for a section with these keys. Raises RecipeError where what they name is unknown."""
        named = keys.get(cls.chosen_by, cls.model_fields[cls.chosen_by].default)
        if not isinstance(named, str):
            raise RecipeError(f"it must be a name: {', '.join(cls.kinds.names)}, or an import path")
        return cls.kinds.find(named)

    def lacks(self, method: str) -> RecipeError:
        """What to raise where a kind has not written a method that all must have."""
        return RecipeError(f"{self.kinds.what} '{getattr(self, self.chosen_by)}' has no {method}: CONTRIBUTING.md says "
                           "under \"Adding something\" what each has")  # fmt: skip

    @classmethod
    def with_changes(cls, keys: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
        if cls.chosen_by in changes:
            with suppress(RecipeError):  # unknown: whoever reads the section tells
                fields = cls.kind_in(changes).model_fields
                keys = {key: value for key, value in keys.items() if key in fields}
        return {**keys, **changes}


class OneKind:
    """Annotates a field of a recipe whose type is a direct subclass of `Chosen`."""

    def __get_pydantic_core_schema__(self, source: type[Chosen], handler: GetCoreSchemaHandler) -> CoreSchema:
        def read(value: object, info: ValidationInfo) -> Chosen:
            if isinstance(value, source):
                return value
            if not isinstance(value, Mapping):
                raise PydanticCustomError("section", "a table of keys belongs here")
            try:
                kind = source.kind_in(value)
            except RecipeError as error:
                raise _at(source.chosen_by, value.get(source.chosen_by), error) from error
            if info.mode == "json":  # anew, and as strictly: as Python's values, an array would be no tuple
                return kind.model_validate_json(json.dumps(value), strict=True)
            return kind.model_validate(value)

        return core_schema.with_info_plain_validator_function(
            read, serialization=core_schema.plain_serializer_function_ser_schema(_dump, info_arg=True)
        )


def _dump(section: Chosen, info: core_schema.SerializationInfo) -> dict[str, Any]:
    """With its kind, whether that was set or not."""
    kind = {section.chosen_by: getattr(section, section.chosen_by)}
    return {**kind, **section.model_dump(mode=info.mode, exclude_unset=info.exclude_unset)}


def _at(key: str, value: object, error: RecipeError) -> ValidationError:
    """The error as one of this key."""
    said = PydanticCustomError("kind", "{said}", {"said": str(error)})
    return ValidationError.from_exception_data("section", [InitErrorDetails(type=said, loc=(key,), input=value)])
