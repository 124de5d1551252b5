"""What the tokenizer files of a Hugging Face directory say, as `AutoTokenizer` reads them.

transformers 5 reads `tokenizer.json` as it stands only where the tokenizer's class is a general
one (`PreTrainedTokenizerFast`, `TokenizersBackend`). Of the others it takes vocabulary and
merges from the file, and builds the rest anew from `tokenizer_config.json` and the class's
defaults, even where `tokenizer.json` says otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

from tfde.errors import ConfigError, shorten
from tfde.storage.json_file import read_json_file

Kind = Literal["bert", "mpnet", "roberta", "gpt2", "t5", "xlm_roberta"]

TOKENIZER_JSON = "tokenizer.json"
# The tokenizer class, without "Fast", and the model type that stands for it where none is named.
_CLASSES: dict[str, Kind] = {
    "BertTokenizer": "bert",
    "DistilBertTokenizer": "bert",
    "ElectraTokenizer": "bert",
    "DPRQuestionEncoderTokenizer": "bert",
    "DPRContextEncoderTokenizer": "bert",
    "DPRReaderTokenizer": "bert",
    "MPNetTokenizer": "mpnet",
    "RobertaTokenizer": "roberta",
    "LongformerTokenizer": "roberta",
    "BartTokenizer": "roberta",
    "GPT2Tokenizer": "gpt2",
    "T5Tokenizer": "t5",
    "MT5Tokenizer": "t5",
    "XLMRobertaTokenizer": "xlm_roberta",
}
_MODEL_TYPES: dict[str, Kind] = {
    "bert": "bert",
    "distilbert": "bert",
    "electra": "bert",
    "dpr": "bert",
    "mpnet": "mpnet",
    "roberta": "roberta",
    "longformer": "roberta",
    "bart": "roberta",
    "gpt2": "gpt2",
    "t5": "t5",
    "mt5": "t5",
    "xlm-roberta": "xlm_roberta",
}
_ROBERTA = {
    "bos_token": "<s>",
    "eos_token": "</s>",
    "sep_token": "</s>",
    "cls_token": "<s>",
    "unk_token": "<unk>",
    "pad_token": "<pad>",
    "mask_token": "<mask>",
}
_END_OF_TEXT = dict.fromkeys(("unk_token", "bos_token", "eos_token"), "<|endoftext|>")
_DEFAULTS: dict[Kind | None, dict[str, str]] = {
    None: {},
    "bert": {
        "unk_token": "[UNK]",
        "sep_token": "[SEP]",
        "pad_token": "[PAD]",
        "cls_token": "[CLS]",
        "mask_token": "[MASK]",
    },
    "mpnet": {**_ROBERTA, "unk_token": "[UNK]"},
    "roberta": _ROBERTA,
    "gpt2": _END_OF_TEXT,
    "t5": {"eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"},
    "xlm_roberta": _ROBERTA,
}
_OTHER_NAMED = ("bos_token", "eos_token", "sep_token", "cls_token", "unk_token", "pad_token")
NAMED_TOKENS = (*_OTHER_NAMED, "mask_token")
_FLAGS = ("single_word", "lstrip", "rstrip", "normalized")


class AddedToken(NamedTuple):
    """A token that is recognised where a text spells it out.

    Attributes:
        content: Its spelling.
        id: Its id, or `None` where the vocabulary says it.
        single_word: Whether it counts only where no letter, mark or digit touches it.
        lstrip: Whether white space before it belongs to it.
        rstrip: Whether white space after it belongs to it.
        normalized: Whether it is looked for in the normalized text.
    """

    content: str
    id: int | None = None
    single_word: bool = False
    lstrip: bool = False
    rstrip: bool = False
    normalized: bool = False

    @classmethod
    def from_json(cls, value: Mapping[str, Any], token_id: int | None = None) -> AddedToken:
        """Returns what a JSON object of Hugging Face's says."""
        flags = {name: bool(value.get(name, False)) for name in _FLAGS}
        if not isinstance(value["content"], str):
            raise TypeError("`content` is not a string")
        return cls(content=value["content"], id=value.get("id", token_id), **flags)


class HuggingFaceDirectory:
    """The tokenizer files of one directory.

    Attributes:
        path: The directory.
        tokenizer: The content of `tokenizer.json`, or `None` where there is none.
        options: `tokenizer_config.json` and, in old directories, `special_tokens_map.json`.
        extra_special_tokens: Those beside the named ones, as the options say them.
        kind: The class that transformers builds anew; `None`: `tokenizer.json` counts.
        class_is_known: Whether the files name a class or a model type at all.

    Args:
        path: The directory.

    Raises:
        ConfigError: a file is not a JSON object.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.tokenizer = read_json(self.path / TOKENIZER_JSON)
        self.options = read_json(self.path / "tokenizer_config.json") or {}
        self.extra_special_tokens = _extra_special_tokens(self.options)
        self._added_ids: dict[str, Any] = {}
        # Whether those are special is said by the configuration alone.
        self._known_as_special = {str(value) for value in self.extra_special_tokens}
        if "added_tokens_decoder" not in self.options:
            more = read_json(self.path / "special_tokens_map.json") or {}
            self.options |= more
            self.extra_special_tokens = self.extra_special_tokens or _extra_special_tokens(more)
            self._added_ids = read_json(self.path / "added_tokens.json") or {}
        config = read_json(self.path / "config.json") or {}
        name = self.options.get("tokenizer_class") or config.get("tokenizer_class")
        model_type = config.get("model_type")
        self.class_is_known = bool(name or model_type)
        self.kind: Kind | None = (
            _CLASSES.get(str(name).removesuffix("Fast"))
            if name
            else _MODEL_TYPES.get(str(model_type))
        )
        padding = (self.tokenizer or {}).get("padding")
        if self.kind is None and isinstance(padding, Mapping):
            self.options.setdefault("pad_token", padding.get("pad_token"))

    def named_token(self, name: str, *, kind: Kind | None = None) -> str | None:
        """Returns the spelling of a token such as `cls_token`, or `None`.

        Args:
            name: The option.
            kind: Whose default counts where the files name no class.
        """
        defaults = _DEFAULTS[self.kind or kind]
        value = self.options.get(name, defaults.get(name))
        return value["content"] if isinstance(value, Mapping) else value

    def added_tokens(self) -> list[AddedToken]:
        """Returns the tokens that texts may spell out.

        Raises:
            ConfigError: an entry is not one.
        """
        found: dict[str, AddedToken] = {}
        try:
            decoder = self.options.get("added_tokens_decoder")
            if self.tokenizer is not None and (self.kind is None or decoder is None):
                for value in self.tokenizer.get("added_tokens") or ():
                    found[value["content"]] = AddedToken.from_json(value)
            for key, value in (decoder or {}).items():
                token = AddedToken.from_json(value, int(key))
                found.setdefault(token.content, token)
            special = self._known_as_special | {
                str(self.named_token(name)) for name in NAMED_TOKENS if self.options.get(name)
            }
            for content, token_id in self._added_ids.items():
                token = AddedToken(content, int(token_id), normalized=content not in special)
                found.setdefault(content, token)
            for name in NAMED_TOKENS:
                value = self.options.get(name)
                if isinstance(value, Mapping):
                    token = AddedToken.from_json(value)
                    found.setdefault(token.content, token)
                elif spelling := self.named_token(name):
                    found.setdefault(spelling, AddedToken(spelling))
            for value in self.extra_special_tokens:
                plain = {"content": value} if isinstance(value, str) else value
                token = AddedToken.from_json(plain)
                found.setdefault(token.content, token)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ConfigError(
                f"{self.path}: added tokens must be objects with `content` and `id`."
                f" Received: {type(error).__name__} ({shorten(str(error))})"
            ) from error
        return list(found.values())

    def vocabulary(
        self, ids: Mapping[str, int], added: list[AddedToken], where: Path
    ) -> tuple[list[str], list[AddedToken]]:
        """Returns all tokens, and the added ones among them, in the order of the ids.

        Args:
            ids: The model's vocabulary.
            added: The tokens beside it. One without an id, and not in `ids`, gets the next id; but
                a named one, such as `mask_token`, is left out: no model has a row for it.
            where: The file, for the error's message.

        Raises:
            ConfigError: the ids are not 0, 1, 2 ..., or two tokens share one.
        """
        known = dict(ids)
        for token in added:
            if token.id is not None:
                known.setdefault(token.content, token.id)
        named = {self.named_token(name) for name in NAMED_TOKENS}
        for token in added:
            if token.content not in known and token.content not in named:
                known[token.content] = max(known.values(), default=-1) + 1
        kept = [t._replace(id=known[t.content]) for t in added if t.content in known]
        by_id = {index: token for token, index in known.items()}
        if sorted(known.values()) != list(range(len(known))):
            raise ConfigError(
                f"{where}: ids must be 0, 1, 2 ... without a gap."
                f" Received: {len(known)} tokens, {len(by_id)} ids up to {max(by_id, default=-1)}"
            )
        kept.sort(key=lambda token: known[token.content])
        return [by_id[index] for index in range(len(by_id))], kept


def _extra_special_tokens(options: Mapping[str, Any]) -> list[Any]:
    value = options.get("extra_special_tokens") or options.get("additional_special_tokens") or ()
    return list(value.values() if isinstance(value, Mapping) else value)


def read_json(path: Path) -> dict[str, Any] | None:
    """Returns the object in a JSON file, or `None` where there is no such file.

    Raises:
        ConfigError: the file cannot be read or holds no JSON object.
    """
    if not path.is_file():
        return None
    try:
        return dict(read_json_file(path))
    except (OSError, ValueError, TypeError) as error:
        raise ConfigError(f"{path}: must be a JSON object. Received: {error}") from error
