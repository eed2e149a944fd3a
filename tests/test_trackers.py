"""W&B in its offline mode and MLflow in a local folder, by the packages themselves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from experiments.schema import ConfigError
from gfn.examples import Example
from gfn.reporting import Report
from gfn.trackers import MLflow, WandB
from tests.composing import SMALL, built

SHOWN = [Example("1 1 stop", 0.9, True), Example("0 0 stop", -2.0, False)]


def report(step: int, **evaluation: float) -> Report:
    metrics = {"loss": 1 / step, "pass@1": 0.5}
    return Report(step, 10, 8 * step, metrics, evaluation or None, SHOWN if evaluation else ())


def tell(callback: Any, first: int, last: int) -> None:
    """Updates ``first`` to ``last``, with an evaluation at every fourth."""
    callback.start(first - 1)
    for step in range(first, last + 1):
        callback(report(step, tv=0.1 * step) if step % 4 == 0 else report(step))
    callback.close()


def offline_records(directory: Path) -> list[Any]:
    """What an offline run of W&B has written: a log of LevelDB's form, in blocks of 32 KiB, after seven bytes."""
    from wandb.proto.wandb_internal_pb2 import Record

    (path,) = directory.glob("wandb/offline-run-*/run-*.wandb")
    data, at, whole, records = path.read_bytes(), 7, b"", list[Any]()
    while at + 7 <= len(data):
        if 32768 - at % 32768 < 7:
            at += 32768 - at % 32768
            continue
        size, kind = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
        whole += data[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):  # a whole record, or the last part of one
            records.append(Record.FromString(whole))
            whole = b""
    return records


@pytest.mark.slow
def test_wandb_keeps_metrics_tables_and_parameters(tmp_path: Path) -> None:
    tell(WandB(tmp_path, {"env.side": 8}, project="tests", name="toy", every=3), 1, 8)
    records = offline_records(tmp_path)
    run = next(r.run for r in records if r.HasField("run"))
    assert (run.project, run.display_name) == ("tests", "toy")
    config = {update.key or update.nested_key[0]: update.value_json for update in run.config.update}
    assert config["env.side"] == "8"
    lines = [
        {(item.key or item.nested_key[0]): item.value_json for item in r.history.item}
        for r in records
        if r.HasField("history")
    ]
    assert [line["_step"] for line in lines] == ["3", "4", "6", "8"]
    assert [line.get("eval/tv", "")[:3] for line in lines] == ["", "0.4", "", "0.8"]
    assert all("loss" in line and "trajectories" in line for line in lines)
    tables = list(tmp_path.glob("wandb/offline-run-*/files/media/table/*.json"))
    assert len(tables) == 2
    assert "1 1 stop" in tables[0].read_text()


@pytest.mark.slow
def test_mlflow_keeps_metrics_tables_and_parameters_and_goes_on(tmp_path: Path) -> None:
    from mlflow import MlflowClient

    store, run = tmp_path / "store", tmp_path / "run"
    arguments: dict[str, Any] = {"uri": str(store), "experiment": "tests", "name": "toy", "every": 3}
    tell(MLflow(run, {"env.side": 8, "a b": None}, **arguments), 1, 8)
    tell(MLflow(run, {"env.side": 8, "a b": None}, **arguments), 6, 12)  # resumed from a checkpoint at 5
    client = MlflowClient(tracking_uri=store.as_uri())
    experiment = client.get_experiment_by_name("tests")
    assert experiment is not None
    (found,) = client.search_runs([experiment.experiment_id])
    assert found.info.run_id == (run / "mlflow_run_id").read_text().strip()
    assert (found.info.run_name, found.info.status) == ("toy", "FINISHED")
    assert found.data.params == {"env.side": "8", "a b": "None"}
    losses = [(m.step, m.value) for m in client.get_metric_history(found.info.run_id, "loss")]
    assert losses == [(step, 1 / step) for step in (3, 4, 6, 8, 9, 12)]
    assert [m.step for m in client.get_metric_history(found.info.run_id, "eval/tv")] == [4, 8, 12]
    assert client.get_metric_history(found.info.run_id, "pass_at_1")
    assert "1 1 stop" in Path(client.download_artifacts(found.info.run_id, "samples.md")).read_text()


@pytest.mark.slow
def test_mlflow_begins_again_where_the_store_has_no_such_run(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "mlflow_run_id").write_text("0" * 32)
    tell(MLflow(run, {}, uri=str(tmp_path / "store"), every=1), 1, 2)
    assert (run / "mlflow_run_id").read_text().strip() != "0" * 32


@pytest.mark.parametrize(("kind", "package"), [(WandB, "wandb"), (MLflow, "mlflow")])
def test_a_missing_extra_is_named(
    kind: type[Any], package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ValueError, match="every must be at least 1, got 0"):
        kind(tmp_path, {}, every=0)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ImportError, match=rf"needs the package {package}: pip install 'fgfn\[{package}\]'"):
        kind(tmp_path, {})


@pytest.mark.parametrize(
    ("option", "values"), [("wandb", ["logger.wandb.mode=disabled"]), ("mlflow", ["logger.mlflow.uri=store"])]
)
def test_trackers_are_chosen_by_config(
    option: str, values: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    few = [value for value in SMALL if not value.startswith("logger")]
    run = built(tmp_path / "run", *few, f"logger={option}", "~logger.tensorboard", *values)
    tracker: Any = run.trainer.callbacks[-1]
    assert tracker.hyperparameters["env.side"] == 4
    assert tracker.hyperparameters["policy.width"] == 8
    assert "run" not in tracker.hyperparameters
    run.trainer.run()
    if option == "mlflow":
        assert list((tmp_path / "store").glob("*/*/metrics/eval/tv"))
    with pytest.raises(ConfigError, match="every must be at least 1"):
        built(tmp_path / "other", *few, f"logger={option}", f"logger.{option}.every=0")
