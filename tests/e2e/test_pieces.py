"""A model that is published in several files, here SmolLM2 cut as llama.cpp's gguf-split cuts."""
import re

import pytest

from api_server import MODEL, larder, serving
from gguf_parts import ALIGNMENT, key, parts_of, write_piece

@pytest.fixture(scope="module")
def pieces(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pieces")
    values, num_values, tensors = parts_of(MODEL)
    assert all(len(data) % ALIGNMENT == 0 for _, data in tensors)
    paths = []
    for index in range(3):
        split = (key(b"split.no", 2, "H", index) + key(b"split.count", 2, "H", 3) +
                 key(b"split.tensors.count", 5, "i", len(tensors)))
        paths.append(folder / f"SmolLM2-{index + 1:05}-of-00003.gguf")
        write_piece(paths[-1], values + split if index == 0 else split, num_values + 3 if index == 0 else 3,
                    tensors[100 * index:100 * (index + 1) if index < 2 else None])
    return paths


def test_pieces_answer_as_the_whole(pieces):
    prompt = ("generate", "--kv-size", "256MiB", "-p", "The capital of France is", "-n", 16)
    whole = larder(*prompt, "-m", MODEL).stdout
    assert "Paris" in whole
    assert [larder(*prompt, "-m", pieces[index]).stdout for index in (0, 2)] == [whole, whole]


def test_blocks_on_disk_outlive_a_restart_of_pieces(pieces, tmp_path):
    prompt = "A larder keeps what was made once. " * 20
    texts, hits = [], []
    for _ in range(2):
        with serving("--kv-disk", tmp_path, "--kv-disk-size", "64MiB", model=str(pieces[0])) as server:
            reply = server.client.completions.create(model="smollm2", prompt=prompt, max_tokens=8, temperature=0)
            texts.append(reply.choices[0].text)
            hits.append(reply.usage.prompt_tokens_details.cached_tokens)
    assert texts[0] == texts[1]
    assert hits[0] == 0 and hits[1] > 100


def test_the_doctor_says_which_piece_is_missing(pieces):
    whole, cut = (re.search(r"weights +(.*)", larder("doctor", "--port", 0, "-m", model).stdout)[1] for model in (MODEL, pieces[1]))
    assert whole == cut
    away = pieces[1].rename(pieces[1].with_suffix(".away"))
    try:
        assert str(pieces[1]) in larder("doctor", "--port", 0, "-m", pieces[0], code=1).stdout
    finally:
        away.rename(pieces[1])
