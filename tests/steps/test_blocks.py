"""Files of vectors: what is read is what was written, or an error that names the file."""

import pytest
import torch
from safetensors.torch import save_file

from modeling_cobert.steps.blocks import BlockFile, write_blocks

SIZES = [2, 1, 3]


@pytest.fixture
def path(tmp_path):
    write_blocks(tmp_path / "00000.safetensors", torch.arange(24.0).view(6, 4), SIZES, {"truncated": [0, 7]})
    return tmp_path / "00000.safetensors"


def read(path):
    file = BlockFile(path, SIZES)
    return [file[i].tolist() for i in range(len(SIZES))], file.notes


def test_round_trip(path):
    blocks, notes = read(path)
    assert blocks == [block.tolist() for block in torch.arange(24.0).view(6, 4).split(SIZES)]
    assert notes == {"truncated": [0, 7]}
    before = path.read_bytes()
    write_blocks(path, torch.arange(24.0).view(6, 4), SIZES, {"truncated": [0, 7]})
    assert path.read_bytes() == before


def test_every_damage_is_told(path):
    whole, expected = path.read_bytes(), read(path)
    damaged = [whole[:length] for length in range(len(whole))]
    for place, byte in enumerate(whole):
        damaged.append(whole[:place] + bytes([byte ^ 1 << place % 8]) + whole[place + 1 :])
    for content in damaged:
        path.write_bytes(content)
        try:
            found = read(path)
        except ValueError as error:
            assert str(error).startswith(f"{path}: damaged") and str(error).endswith("remove it and run again")
        else:
            assert found == expected


def test_the_damaged_block_is_named_and_the_others_are_read(path):
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    file = BlockFile(path)
    assert file[1].tolist() == [[8.0, 9.0, 10.0, 11.0]]
    with pytest.raises(ValueError, match="00000.safetensors: damaged, .* .block 2 does not fit its checksum"):
        file[2]


def test_files_of_others(path):
    with pytest.raises(ValueError, match="it has other blocks"):
        BlockFile(path, [3, 3])
    save_file({"vectors": torch.zeros(6, 4)}, path)
    with pytest.raises(ValueError, match="its checksums are not there"):
        BlockFile(path)
    with pytest.raises(FileNotFoundError):
        BlockFile(path.with_name("00001.safetensors"))
