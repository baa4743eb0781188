"""The demo goes the whole way, here with a tiny encoder and a few steps."""

import tiny

from modeling_cobert.commands.demo import SYSTEMS, DemoOptions, main


def test_the_whole_way(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    encoder = str(tiny.bert_checkpoint(tmp_path / "encoder"))
    table = main(DemoOptions(encoder=encoder, max_steps=2))
    assert [row[0] for row in table.rows] == ["BM25 (first stage)", *(name for name, *_ in SYSTEMS)]
    assert all(0 <= float(value) <= 1 for row in table.rows for value in row[1:])
    printed = capsys.readouterr().out
    assert "recall@24" in printed and "nDCG@20" in printed and "Lambdas" in printed
    assert (tmp_path / "outputs" / "demo" / "cobert" / "fold-1" / "model.safetensors").exists()
