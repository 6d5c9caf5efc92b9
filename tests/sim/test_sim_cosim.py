"""Co-simulation: gradients meet exactly the losses that were simulated, and nothing else happens to them."""

import csv
import json
from importlib.util import find_spec

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlcp.cli.main import main
from dlcp.collectives.reduce import reduce_contributions
from dlcp.errors import ConfigError, DLCPError
from dlcp.wire.header import WireType
from dlcp.workload import Workload
from sim.cosim.network import Network, missing_packets
from sim.cosim.plan import ALGORITHMS, Collective, Piece, stretches, understood, ways
from sim.cosim.reduce import Layout, all_reduce
from sim.cosim.task import Options, Task, flat, layout_of, put
from sim.cosim.train import Trainer
from sim.scenario_file import read
from sim.traffic.units import buckets, by_layer
from tests.conftest import ROOT

torch = pytest.importorskip("torch")
pytest.importorskip("sklearn")

WIDTH = 8
ENGINE = "compiled" if find_spec("llvmlite") else "python"
RUN = """
topology = "net.toml"
policy = "policy.toml"
workload = "model.toml"
limit = "100 s"
events = [{ at = "0 s", a = "h1", b = "s0", loss = 0.15 }]
[transport]
name = "dlcp"
host_times = 0.1
[traffic]
kind = "training"
algorithm = "sharded"
bucket = "60 kB"
"""
POLICY = """
[loss]
push = 0.3
compensation = "{compensation}"
{more}
[protection]
share = 0.2
"""


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """These models are small: threads would only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def scenario(tmp_path):
    """Returns a function that writes a scenario for a small digits model and returns its file."""
    model = Task(Options(width=WIDTH)).model
    layers = []
    for name, module in model.named_modules():
        own = sum(parameter.numel() for parameter in module.parameters(recurse=False))
        if own:
            layers.append((name, own, "20 us", "40 us"))
    text = Workload.from_layers("small", layers).to_toml()
    (tmp_path / "model.toml").write_text(text)
    (tmp_path / "net.toml").write_text('[generate]\nkind = "star"\nhosts = 4\nrate = "1 Gbit/s"\n')

    def write(compensation="error-feedback", more=""):
        (tmp_path / "policy.toml").write_text(POLICY.format(compensation=compensation, more=more))
        (tmp_path / "run.toml").write_text(RUN)
        return tmp_path / "run.toml"

    return write


def trainer(path, *changes, dtype="float64", compensation="error-feedback", **options):
    scenario = read(path, changes)
    workload = Workload.from_toml(path.parent / "model.toml")
    network = Network(scenario, path.parent, workload, engine=ENGINE, chunk=3, warmup=0, most=6)
    task = Task(Options(width=WIDTH, dtype=dtype, epochs=1, batch_size=70, **options))
    return Trainer(task, network, workload, scenario.traffic.algorithm, compensation)


# Messages and arrays


def pieces_of(algorithm, world, size, servers=2):
    owners = servers if algorithm == "ps" else world
    places = stretches(algorithm, size, owners)
    return tuple(
        Piece(number, way, *places[way.shard], 0.0)
        for number, way in enumerate(ways(algorithm, world, servers, len(places) // owners))
    )


@st.composite
def exchanges(draw):
    algorithm = draw(st.sampled_from(ALGORITHMS))
    world = draw(st.integers(2, 5))
    elements = draw(st.integers(1, 60))
    layout = Layout(draw(st.sampled_from((2, 4))), draw(st.sampled_from((8, 24))))
    size = elements * layout.item
    pieces = pieces_of(algorithm, world, size)
    missing = {}
    for number in draw(st.lists(st.sampled_from([piece.number for piece in pieces if not piece.way.pull]), unique=True)):
        count = max(-(-pieces[number].size // layout.payload), 1)
        missing[number] = np.array(draw(st.lists(st.booleans(), min_size=count, max_size=count)))
    seed = draw(st.integers(0, 1000))
    values = np.random.default_rng(seed).integers(-50, 50, (world, elements)).astype(np.float64)
    return algorithm, layout, Collective("bucket0", 0, size, pieces), missing, values


@given(exchanges())
def test_every_element_is_in_one_packet_of_one_message(drawn):
    algorithm, layout, collective, _, values = drawn
    world, elements = values.shape
    pushed = np.zeros((world, elements), int)
    told = np.zeros((world, elements), int)
    for piece in collective.pieces:
        packets = np.ones(max(-(-piece.size // layout.payload), 1), bool)
        places = layout.elements(piece)
        assert layout.lost(piece, packets).sum() == places.stop - places.start
        assert not layout.lost(piece, ~packets).any()
        # What one packet holds, all packets together hold once.
        parts = [layout.lost(piece, np.arange(len(packets)) == packet) for packet in range(len(packets))]
        assert (np.sum(parts, axis=0) == 1).all() if places.stop > places.start else True
        if piece.way.pull:
            told[piece.way.destination, places] += 1
        else:
            pushed[piece.way.source, places] += 1
    shards = [layout.elements(piece) for piece in collective.pieces]
    owners = {piece.way.shard for piece in collective.pieces}
    if algorithm == "ps":
        assert (pushed == 1).all() and (told == 1).all()
    else:
        # Each shard is known to its owner, and sent by, or past, everybody else.
        assert (pushed.sum(axis=0) == world - 1).all() and (told.sum(axis=0) == world - 1).all()
    assert len(owners) == len({(each.start, each.stop) for each in shards}) or elements < 2 * world


@given(exchanges())
def test_what_is_contributed_is_delivered_or_kept(drawn):
    algorithm, layout, collective, missing, values = drawn
    before = values.copy()
    found = all_reduce(values, collective, algorithm, missing, layout)
    assert (values == before).all()
    assert len(found.means) == 1
    lost = np.zeros_like(values) if found.lost is None else found.lost
    np.testing.assert_allclose(values.sum(axis=0), found.means[0] * len(values) + lost.sum(axis=0), atol=1e-9)
    assert (found.lost is None) == (not missing)
    if not missing:
        np.testing.assert_allclose(found.means[0], values.mean(axis=0))


@given(exchanges(), st.booleans())
def test_sums_are_those_of_the_product(drawn, rescale):
    _, layout, collective, missing, values = drawn
    if collective.pieces[0].way.destination < len(values) or layout.item != 4:
        return  # shards at servers: every contribution goes the same way
    found = all_reduce(values, collective, "ps", missing, layout, rescale=rescale)
    for shard in {piece.way.shard for piece in collective.pieces}:
        pushes = [piece for piece in collective.pieces if not piece.way.pull and piece.way.shard == shard]
        places = layout.elements(pushes[0])
        if pushes[0].offset % layout.item or places.stop == places.start:
            continue
        lost = [np.flatnonzero(missing.get(piece.number, np.zeros(0, bool))) for piece in pushes]
        arrays = []
        for piece in pushes:
            array = values[piece.way.source, places].copy()
            if piece.number in missing:
                array[layout.lost(piece, missing[piece.number])] = 0
            arrays.append(array)
        wanted = reduce_contributions(
            arrays, lost, WireType.FLOAT32, layout.payload // layout.item, divisor=len(values), rescale=rescale
        )
        np.testing.assert_allclose(found.means[0][places], wanted, atol=1e-12)


def test_results_that_do_not_arrive_are_ones_own_contribution():
    layout, values = Layout(4, 8), np.arange(24.0).reshape(3, 8)
    pieces = pieces_of("sharded", 3, 32)
    pull = next(piece for piece in pieces if piece.way.pull and piece.way.destination == 2 and piece.way.shard == 0)
    found = all_reduce(values, Collective("bucket0", 0, 32, pieces), "sharded", {pull.number: np.array([False, True])}, layout)
    assert (found.means[:2] == values.mean(axis=0)).all()
    assert found.means[2].tolist() == [8.0, 9.0, 18.0, *values.mean(axis=0)[3:].tolist()], "element 2 only"


@given(st.integers(1, 9), st.lists(st.floats(0, 100), min_size=40, max_size=40), st.data())
def test_the_first_packets_are_the_largest_ones(protected, scores, data):
    piece = Piece(0, next(ways("sharded", 2)), 0, 160, protected / 10)
    layout = Layout(4, 16)
    packets = np.array(data.draw(st.lists(st.booleans(), min_size=10, max_size=10)))
    packets[:protected] = False
    lost = layout.lost(piece, packets, np.array(scores)).reshape(10, 4)
    assert lost.all(axis=1).sum() == packets.sum() == lost.any(axis=1).sum()
    means = np.array(scores).reshape(10, 4).mean(axis=1)
    if packets.any() and protected:
        kept = np.sort(means)[::-1][:protected]
        assert means[lost.any(axis=1)].max() <= kept.min() + 1e-9


# The simulation


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_messages_are_understood_and_others_are_not(scenario, algorithm):
    path = scenario()
    for schedule in ("buckets", "layers", "chunks"):
        changes = (
            f"traffic.algorithm={algorithm}",
            f"traffic.schedule={schedule}",
            "traffic.chunk=3 kB",
            "traffic.server_count=2",
        )
        made = trainer(path, *changes)
        step = next(made.network.steps())
        assert made.network.world == (2 if algorithm == "ps" else 4)
        sizes = {}
        for each in step.collectives:
            sizes[each.group] = sizes.get(each.group, 0) + each.size
        assert sum(sizes.values()) == sum(parameter.numel() for parameter in made.task.model.parameters()) * 4
    simulation = read(path, ["traffic.iterations=1"]).build(path.parent, ENGINE)
    parts = [(f"bucket{number}", part.sizes) for number, part in enumerate(trainer(path).network.parts)]
    assert understood(simulation.messages, "sharded", [0, 1, 2, 3], 4, parts)
    carried = [message for message in simulation.messages if message.source != message.destination]
    for attribute, value in (("size", 7), ("source", 3), ("group", "bucket99")):
        before = getattr(carried[0], attribute)
        setattr(carried[0], attribute, value)
        with pytest.raises(DLCPError, match="not the messages"):
            understood(simulation.messages, "sharded", [0, 1, 2, 3], 4, parts)
        setattr(carried[0], attribute, before)
    with pytest.raises(DLCPError, match="not the messages"):
        understood(simulation.messages, "ring", [0, 1, 2, 3], 4, parts)


def test_masks_are_what_the_summary_counts(scenario):
    path = scenario()
    simulation = read(path, ["traffic.iterations=3"]).build(path.parent, ENGINE)
    with pytest.raises(DLCPError, match="not complete"):
        missing_packets(simulation, next(n for n, each in enumerate(simulation.messages) if each.source != each.destination))
    assert simulation.run()
    from sim.results import Rows, summarize

    masks = {row["message"]: missing_packets(simulation, row["message"]) for row in Rows(simulation).new()}
    for row in Rows(simulation).new():
        mask = masks[row["message"]]
        assert len(mask) == row["packets"] and mask.sum() == row["missing_packets"]
        # What is protected arrives.
        assert not mask[: -(-len(mask) // 5)].any()
    assert sum(mask.sum() for mask in masks.values()) == summarize(simulation)["packets"]["missing"] > 0


# The training


def plain(dtype, world, batches, algorithm="sharded"):
    """Returns the parameters after data-parallel SGD as everybody would write it."""
    from examples.evaluation import loss_of

    task = Task(Options(width=WIDTH, dtype=dtype))
    parameters = list(task.model.parameters())
    for batch in batches:
        total = None
        for samples in batch:
            task.model.zero_grad()
            loss_of(task.model(task.data.train_inputs[samples]), task.data.train_targets[samples]).backward()
            mine = [parameter.grad.clone() for parameter in parameters]
            total = mine if total is None else [a + b for a, b in zip(total, mine, strict=True)]
        for parameter, gradient in zip(parameters, total, strict=True):
            parameter.grad = gradient / world
        task.optimizer.step()
    return [parameter.detach().numpy() for parameter in parameters]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_without_losses_it_is_plain_data_parallel_sgd(scenario, algorithm, dtype):
    path = scenario()
    made = trainer(path, "transport.name=dctcp", f"traffic.algorithm={algorithm}", dtype=dtype)
    world = made.network.world
    batches = list(made.task.batches(world))[:3]
    for batch, step in zip(batches, made.network.steps(), strict=False):
        assert not step.missing
        made.step(batch, step)
    found = [parameter.detach().numpy() for parameter in made.task.model.parameters()]
    for mine, theirs in zip(found, plain(dtype, world, batches), strict=True):
        if algorithm == "ring":
            np.testing.assert_allclose(mine, theirs, rtol=0, atol=1e-12 if dtype == "float64" else 1e-5)
        else:
            assert np.array_equal(mine, theirs), "to the last bit"


@pytest.mark.parametrize("algorithm", ["sharded", "ring"])
@pytest.mark.parametrize("compensation", ["error-feedback", "zero"])
def test_no_gradient_is_lost_unaccounted_for(scenario, algorithm, compensation):
    made = trainer(scenario(), f"traffic.algorithm={algorithm}", compensation=compensation)
    missing = 0
    for batch, step in zip(made.task.batches(4), made.network.steps(), strict=False):
        before = [None if owed is None else owed.copy() for owed in made._owed]
        made.step(batch, step)
        missing += sum(int(mask.sum()) for mask in step.missing.values())
        assert compensation == "error-feedback" or before == [None] * len(before)
    ledger = made.ledger
    assert missing > 0
    kept = ledger.owed if compensation == "error-feedback" else ledger.forgotten
    assert kept != 0 and ledger.contributed == pytest.approx(ledger.delivered + kept, rel=1e-9, abs=1e-9)
    assert ledger.owed == pytest.approx(sum(owed.sum() for owed in made._owed if owed is not None), abs=1e-9)


def test_replicas_part_when_results_are_lost(scenario):
    path = scenario(more="pull = 0.2\nresync_steps = 1000")
    made = trainer(path)
    points = list(made.run([step for step, _ in zip(made.network.steps(), range(6), strict=False)]))
    assert len(made.replicas) == 4
    weights = [torch.cat([each.detach().ravel() for each in model.parameters()]) for model, _ in made.replicas]
    assert any(not torch.equal(weights[0], other) for other in weights[1:])
    assert points[-1].accuracy is not None and np.isnan(made.ledger.delivered)


def test_training_repeats_steps_when_it_is_longer_than_the_simulation(scenario):
    made = trainer(scenario())
    steps = [step for step, _ in zip(made.network.steps(), range(8), strict=False)]
    assert made.network.simulated == 6 and steps[6] is steps[0] and steps[0] is not steps[3]


# The command


def test_candidates_are_compared_over_simulated_time(scenario, tmp_path, capsys):
    arguments = ["sim", "cosim", str(scenario()), "--engine", ENGINE, "--quiet", "--width", str(WIDTH), "--batch-size", "70"]
    arguments += ["--epochs", "1", "--chunk", "3", "--simulated", "4", "--out", str(tmp_path / "out"), "--target", "0.05"]
    assert main([*arguments, "--transport", "dlcp", "--transport", "dctcp", "--transport", "tcp", "--json"]) == 0
    found = {each["candidate"]: each for each in json.loads(capsys.readouterr().out)}
    assert found["tcp"]["same_as"] == "dctcp" and found["tcp"]["accuracy"] == found["dctcp"]["accuracy"]
    assert found["dlcp"]["missing_share"] > 0 == found["dctcp"]["missing_share"]
    assert found["tcp"]["time_s"] != found["dctcp"]["time_s"]
    assert found["dlcp"]["steps"] == 1437 // 280 and found["dlcp"]["simulated_steps"] == 4
    with (tmp_path / "out" / "curves.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == sum(each["steps"] for each in found.values())
    for name, each in found.items():
        mine = [row for row in rows if row["candidate"] == name]
        assert float(mine[-1]["time_s"]) == each["time_s"] == pytest.approx(sum(float(row["step_s"]) for row in mine))
        reached = [float(row["time_s"]) for row in mine if row["accuracy"] and float(row["accuracy"]) >= 0.05]
        assert each["time_to_accuracy_s"]["0.05"] == (reached[0] if reached else None)
    page = (tmp_path / "out" / "cosim.html").read_text()
    assert all(f'id="{key}"' in page for key in ("accuracy", "loss", "residual", "missing"))
    assert main([*arguments, "--transport", "dlcp"]) == 0
    with (tmp_path / "out" / "curves.csv").open() as file:
        assert list(csv.DictReader(file)) == [row for row in rows if row["candidate"] == "dlcp"], "the same once more"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--set", "traffic.kind=permutation"], "traffic.kind: permutation cannot be co-simulated"),
        (["--set", "traffic.algorithm=hierarchical"], "sharded, ring, ps"),
        (["--width", "5"], "the workload of the task's model"),
        (["--task", "charlm"], "the workload of the task's model"),
        (["--compensation", "hope"], "error-feedback, zero, rescale"),
        (["--compensation", "rescale", "--set", "traffic.algorithm=ring"], "does not go with a ring"),
        (["--batch-size", "600"], "--batch-size"),
        (["--transport", "pigeon"], "pigeon"),
    ],
)
def test_what_does_not_fit_is_said(scenario, capsys, arguments, says):
    line = [
        "sim",
        "cosim",
        str(scenario()),
        "--engine",
        "python",
        "--quiet",
        "--width",
        str(WIDTH),
        "--epochs",
        "1",
        "--chunk",
        "1",
    ]
    assert main([*line, *arguments]) == 2
    assert says in capsys.readouterr().err


def test_a_time_limit_that_is_too_short_is_an_error(scenario, capsys):
    line = ["sim", "cosim", str(scenario()), "--engine", ENGINE, "--quiet", "--width", str(WIDTH), "--set", "limit=1 ms"]
    assert main(line) != 0
    assert "longer than the scenario's limit" in capsys.readouterr().err


@settings(max_examples=10, deadline=None)
@given(st.integers(2, 7), st.integers(1, 40), st.integers(0, 5))
def test_ranks_share_out_the_data_without_overlap(world, batch_size, seed):
    task = Task.__new__(Task)
    task.options = Options(epochs=2, batch_size=batch_size, seed=seed)
    task.data = type("Data", (), {"train_inputs": range(1437)})()
    steps = list(task.batches(world))
    assert len(steps) == 2 * task.steps_per_epoch(world)
    epoch = torch.cat([samples for step in steps[: len(steps) // 2] for samples in step])
    assert len(epoch) == len(epoch.unique()) == len(steps) // 2 * world * batch_size
    with pytest.raises(ConfigError, match="batch-size"):
        task.options = Options(batch_size=1437)
        list(task.batches(world))


@pytest.mark.parametrize(("task", "file"), [("digits", "workloads/digits.toml"), ("charlm", "scenarios/workloads/charlm.toml")])
def test_workloads_that_come_along_are_those_of_the_tasks(task, file):
    model = Task(Options(task=task, text_bytes=5000)).model
    workload = Workload.from_toml(ROOT / file)
    sizes = {name: parameter.numel() for name, parameter in model.named_parameters()}
    for parts in (buckets(workload, 256 << 10), by_layer(workload, 0)):
        groups = layout_of(model, workload, parts)
        assert sorted(name for names in groups for name in names) == sorted(sizes)
        for names, part in zip(groups, parts, strict=True):
            assert 4 * sum(sizes[name] for name in names) == sum(part.sizes)
    model.zero_grad()
    arrays = [np.arange(4 * sum(part.sizes) // 16, dtype=np.float32) for part in parts]
    put(model, groups, arrays)
    assert all(np.array_equal(a, b) for a, b in zip(flat(model, groups), arrays, strict=True))
