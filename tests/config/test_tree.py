from pathlib import Path

from omegaconf import OmegaConf

from hydrl.config import CONFIGS
from hydrl.config.tree import read_yaml


def test_files_are_read_as_omegaconf_reads_them(tmp_path: Path):
    words = "1e-3 -1E+4 1.5e3 1_0e-3 1e 1.5_e3 .5e3 .5e+3 e5 '1e3' 1_000 .inf 1:30 0x1f 010 yes ~ 2026-01-01"
    (tmp_path / "words.yaml").write_text("".join(f"- [{word}]\n" for word in words.split()))
    files = [tmp_path / "words.yaml", *CONFIGS.rglob("*.yaml")]
    assert len(files) > 200
    for file in files:
        assert repr(read_yaml(file) or {}) == repr(OmegaConf.to_container(OmegaConf.load(file))), file
    assert read_yaml(files[0])[:3] == [[0.001], [-10_000.0], [1500.0]]
