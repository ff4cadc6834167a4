"""The networks for tables: missing and unseen values, members, export, and learning on real rows."""

import csv
import os
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from torch import nn
from torch.nn import functional

from ratchet.errors import TrainingError
from ratchet.kinds import Column, TableInput
from ratchet.problems import Classes, Labels, Numbers, Target
from ratchet.training.models.table_columns import bin_edges
from ratchet.training.models.tabular import TableFront, TableMLP, TabM

NETWORKS = (TabM, TableMLP)
Tensors = tuple[torch.Tensor, ...]
AGE = Column("age", "numeric", 40.0, 10.0, tuple(np.linspace(20.0, 80.0, 129).tolist()))
GAIN = Column("gain", "numeric", 1.0, 5.0, (*[0.0] * 120, *map(float, range(1, 10))))
PET = Column("pet", "categorical", categories=("cat", "dog", "fox"))
TOWN = Column("town", "categorical", categories=tuple(f"town {number:03d}" for number in range(100)))
COLUMNS = {
    "both": (AGE, PET, GAIN, TOWN),
    "numbers": (AGE, GAIN),
    "categories": (PET, TOWN),
    "one-hot": (PET,),
    "embedded": (TOWN,),
}
TARGETS = (Classes(("a", "b", "c")), Labels(("x", "y")), Numbers(("price", "size"), (5.0, 1.0), (2.0, 1.0)))


def rows(table: TableInput, count: int, *, seed: int = 0) -> Tensors:
    """Raw rows: a tenth of all values is missing."""
    random = np.random.default_rng(seed)
    numbers = np.stack([random.choice(column.quantiles, count) for column in table.numeric] or [[]] * count, -1)
    numbers = numbers.reshape(count, len(table.numeric))
    numbers[random.random(numbers.shape) < 0.1] = np.nan
    codes = np.array([random.integers(2, len(column.categories) + 2, count) for column in table.categorical])
    codes = codes.reshape(len(table.categorical), count).T.copy()
    codes[random.random(codes.shape) < 0.1] = 0
    return torch.from_numpy(numbers.astype(np.float32)), torch.from_numpy(codes.astype(np.int64))


class Whole(nn.Module):
    """Front and network, as in a saved model."""

    def __init__(self, network: type[nn.Module], table: TableInput, target: Target, *, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.front, self.network = TableFront(table), network(table, target)

    def forward(self, numbers: torch.Tensor, codes: torch.Tensor) -> torch.Tensor:
        return self.network(*self.front(numbers, codes))


def fit(model: Whole, inputs: Tensors, targets: torch.Tensor, *, steps: int) -> None:
    model.network.initialise(*model.front(*inputs))
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=3e-4)
    model.train()
    for _ in range(steps):
        chosen = torch.randint(len(targets), (64,))
        outputs = model(*(values[chosen] for values in inputs))
        outputs = outputs if outputs.dim() == 3 else outputs.unsqueeze(1)
        expected = targets[chosen].repeat_interleave(outputs.shape[1])
        optimizer.zero_grad()
        functional.cross_entropy(outputs.flatten(0, 1), expected).backward()
        optimizer.step()
    model.eval()


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.problem)
@pytest.mark.parametrize("columns", COLUMNS)
@pytest.mark.parametrize("network", NETWORKS)
def test_gradients_reach_every_parameter(network: type[nn.Module], columns: str, target: Target) -> None:
    table = TableInput(COLUMNS[columns])
    model = Whole(network, table, target)
    outputs = model(*rows(table, 40))
    assert outputs.shape == ((40, 16, target.outputs) if network is TabM else (40, target.outputs))
    outputs.square().sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in model.parameters())
    assert model.eval()(*rows(table, 40)).shape == (40, target.outputs)


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.problem)
def test_prediction_is_the_mean_of_the_members(target: Target) -> None:
    table = TableInput(COLUMNS["both"])
    model = Whole(TabM, table, target)
    for layer in model.network.backbone:
        layer.p = 0.0  # of dropout
    with torch.no_grad():
        members = model(*rows(table, 9)).double().numpy()
        mean = model.eval()(*rows(table, 9)).double().numpy()
    expected = np.mean([target.predictions(members[:, number]) for number in range(16)], axis=0)
    np.testing.assert_allclose(target.predictions(mean), expected, rtol=1e-5, atol=1e-6)


def test_mean_probability_of_certain_members_is_finite() -> None:
    model = Whole(TabM, TableInput((AGE,)), TARGETS[1]).eval()
    with torch.no_grad():
        model.network.head.bias.fill_(1e4)
        assert model(*rows(TableInput((AGE,)), 3)).isfinite().all()


@pytest.mark.parametrize("network", NETWORKS)
def test_values_never_seen_in_training_have_finite_predictions(network: type[nn.Module]) -> None:
    table = TableInput(COLUMNS["both"])
    model = Whole(network, table, TARGETS[0]).eval()
    numbers = torch.tensor([[1e30, -1e30], [float("nan"), float("inf")], [40.0, 0.0]])
    assert model(numbers, torch.tensor([[1, 1], [0, 0], [2, 101]])).isfinite().all()
    ends = torch.tensor([[80.0, 0.0], [1e30, 0.0]])
    outputs = model(ends, torch.full((2, 2), 2))
    assert torch.allclose(outputs[0], outputs[1], atol=1e-5)  # a number beyond the training range counts as its end


def test_unseen_category_is_the_zero_vector_and_missing_is_not() -> None:
    encoder = Whole(TabM, TableInput(COLUMNS["categories"]), TARGETS[0]).network.encoder
    nothing = torch.zeros(2, 0)
    unseen, missing = encoder(nothing, nothing, torch.tensor([[1, 1], [0, 0]]))
    assert not unseen.any()
    assert missing[:4].tolist() == [1.0, 0.0, 0.0, 0.0]  # missing, cat, dog, fox
    assert missing[4:].all()


def test_missing_number_differs_from_the_mean_after_training() -> None:
    table = TableInput((AGE,))
    model = Whole(TabM, table, Classes(("present", "missing")))
    numbers = torch.full((200, 1), 40.0)
    numbers[::2] = float("nan")
    codes = torch.zeros(200, 0, dtype=torch.int64)
    labels = numbers.isnan()[:, 0].long()
    fit(model, (numbers, codes), labels, steps=30)
    assert (model(numbers, codes).argmax(1) == labels).all()


def test_table_without_columns_is_refused() -> None:
    with pytest.raises(TrainingError, match=r"data\.columns: the table has no column besides its targets"):
        TabM(TableInput(()), TARGETS[0])


def test_bins_separate_rare_values_beside_a_frequent_one() -> None:
    rare = np.arange(1.0, 301.0, dtype=np.float32)
    edges = bin_edges(np.concatenate([np.zeros(9700, np.float32), rare]), limit=129)
    assert edges[0] == 0.0
    assert len(edges) == 129
    assert np.diff(edges).max() <= 4
    np.testing.assert_array_equal(bin_edges(np.float32([3, 1, 3, 2]), limit=129), [1, 2, 3])


@pytest.mark.parametrize("values", [[], [float("nan")], [7.0], [1e-45, 2e-45, 3e38]])
def test_columns_of_few_or_extreme_values_give_finite_outputs(values: list[float]) -> None:
    table = TableInput((Column("x", "numeric", quantiles=(0.0, 1.0)),))
    model = Whole(TabM, table, TARGETS[2]).eval()
    numbers = torch.tensor(values, dtype=torch.float32).view(-1, 1)
    codes = torch.zeros(len(values), 0, dtype=torch.int64)
    model.network.initialise(*model.front(numbers, codes))
    assert model(numbers, codes).isfinite().all()


@pytest.mark.parametrize("columns", ["both", "numbers", "categories"])
@pytest.mark.parametrize("network", NETWORKS)
def test_exported_program_equals_the_network(network: type[nn.Module], columns: str, tmp_path: Path) -> None:
    table = TableInput(COLUMNS[columns])
    model = Whole(network, table, TARGETS[0]).eval()
    batch = torch.export.Dim("batch")
    program = torch.export.export(model, rows(table, 5), dynamic_shapes=({0: batch}, {0: batch}))
    path = tmp_path / "model.onnx"
    torch.onnx.export(program, dynamo=True, verbose=False).save(path)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    for count in (1, 33):
        inputs = rows(table, count, seed=1)
        names = [given.name for given in session.get_inputs()]  # an input without columns may have been left out
        given = {name: values.numpy() for name, values in zip(("numbers", "codes"), inputs, strict=True)}
        outputs = session.run(None, {name: given[name] for name in names})[0]
        with torch.no_grad():
            np.testing.assert_allclose(outputs, model(*inputs).numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("network", NETWORKS)
def test_same_seed_gives_the_same_bits(network: type[nn.Module]) -> None:
    table = TableInput(COLUMNS["both"])
    inputs, labels = rows(table, 300), torch.arange(300) % 3
    states = []
    for _ in range(2):
        model = Whole(network, table, TARGETS[0], seed=3)
        fit(model, inputs, labels, steps=5)
        states.append(model.state_dict())
    assert states[0].keys() == states[1].keys()
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


@pytest.mark.parametrize("network", NETWORKS)
def test_saved_state_restores_the_placed_bins(network: type[nn.Module]) -> None:
    table = TableInput(COLUMNS["both"])
    trained, loaded = Whole(network, table, TARGETS[0]), Whole(network, table, TARGETS[0], seed=1)
    inputs = rows(table, 50)
    trained.network.initialise(*trained.front(*inputs))
    loaded.load_state_dict(trained.state_dict())
    assert torch.equal(trained.eval()(*inputs), loaded.eval()(*inputs))


def read_penguins() -> tuple[TableInput, Tensors, torch.Tensor]:
    """The species of the shared penguins, by two texts and four numbers, empty where missing."""
    path = Path(os.environ.get("RATCHET_DATASETS", "")) / "tabular" / "penguins.csv"
    if "RATCHET_DATASETS" not in os.environ or not path.exists():
        pytest.skip("RATCHET_DATASETS is not set, or has no tabular/penguins.csv")
    with path.open(encoding="utf-8") as file:
        lines = list(csv.reader(file))[1:]
    numbers = np.array([[float(value) if value else np.nan for value in line[2:6]] for line in lines], np.float32)
    means, stds = np.nanmean(numbers, 0).tolist(), np.nanstd(numbers, 0).tolist()
    columns = [Column(f"number {place}", "numeric", means[place], stds[place]) for place in range(4)]
    codes = np.zeros((len(lines), 2), np.int64)
    for place, position in enumerate((1, 6)):
        values = tuple(sorted({line[position] for line in lines if line[position]}))
        columns.append(Column(f"text {place}", "categorical", categories=values))
        codes[:, place] = [values.index(line[position]) + 2 if line[position] else 0 for line in lines]
    species = sorted({line[0] for line in lines})
    labels = torch.tensor([species.index(line[0]) for line in lines])
    return TableInput(tuple(columns)), (torch.from_numpy(numbers), torch.from_numpy(codes)), labels


@pytest.mark.parametrize("network", NETWORKS)
def test_networks_learn_real_rows(network: type[nn.Module]) -> None:
    table, inputs, labels = read_penguins()
    shuffled = torch.from_numpy(np.random.default_rng(0).permutation(len(labels)))
    train, test = shuffled[:240], shuffled[240:]
    model = Whole(network, table, Classes(("Adelie", "Chinstrap", "Gentoo")))
    fit(model, tuple(values[train] for values in inputs), labels[train], steps=100)
    right = (model(*(values[test] for values in inputs)).argmax(1) == labels[test]).float().mean()
    majority = labels[test].bincount().max() / len(test)
    assert right > max(0.93, majority)
