"""The demo goes the whole way, here with tiny encoders and a few steps."""

import tiny

from modeling_cobert.commands.demo import SYSTEMS, DemoOptions, main


def test_the_whole_way(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    encoder = str(tiny.bert_checkpoint(tmp_path / "encoder", layers=4, max_position_embeddings=128))
    bi_encoder = str(tiny.bert_checkpoint(tmp_path / "bi", layers=2, hidden_size=20, max_position_embeddings=128))
    table = main(DemoOptions(encoder=encoder, bi_encoder=bi_encoder, max_steps=2))
    names = [row[0] for row in table.rows]
    assert names[:3] == ["BM25 (first stage)", "bi, a bi-encoder", "BM25 + bi-encoder, tuned"]
    assert names[3:] == [name for name, *_ in SYSTEMS]
    assert all(0 <= float(value) <= 1 for row in table.rows for value in row[1:])
    printed = capsys.readouterr().out
    for expected in ("recall@50", "nDCG@20", "against its start", "Where context gained most", "Lambdas"):
        assert expected in printed
    assert (tmp_path / "outputs" / "demo" / "cobert" / "fold-5" / "model.safetensors").exists()
