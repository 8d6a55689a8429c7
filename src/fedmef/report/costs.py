"""What the paper's formulas estimate for a run, to stand next to what was measured."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from statistics import fmean

from fedmef.costs.estimate import Estimate, Setting, estimate, find_terms
from fedmef.costs.facts import NetworkFacts, network_facts
from fedmef.experiment.settings import Experiment
from fedmef.models.initial import plain_network
from fedmef.models.resnet import Stem
from fedmef.runs.directory import Run
from fedmef.sparsity import AdjustmentSchedule


@dataclass(frozen=True)
class EstimatedCosts:
    """Of one device, by the formulas of the paper's appendix, with a bitmap for sparse weights.

    Attributes:
        memory: at the most, in a round that adjusts.
        exchange: bytes down and up in a round, mean over the run's rounds.
        step_flops: multiply-adds of an ordinary local step.
    """

    memory: float
    exchange: float
    step_flops: float


def estimated_costs(run: Run) -> EstimatedCosts | None:
    """The run's estimates; None when its method has no formula or its network cannot be built here.

    A network of the user's own is taken as the run's directory has it, and is not built.
    """
    experiment = run.experiment
    channels, height, width = run.summary.image_shape
    try:
        if ":" in experiment.model:
            network = network_facts(run.network)
        else:
            network = _facts(
                experiment.model,
                experiment.width,
                experiment.stem,
                (channels, height, width),
                run.summary.classes,
            )
    except Exception:  # a network of the user's own may raise anything, or be gone; its memory says why
        return None
    setting = replace(Setting.of(experiment, samples=experiment.batch_size), sparsity=run.sparsity)
    at_most = estimate(experiment.method, find_terms(network, setting))
    if at_most is None:
        return None
    return EstimatedCosts(
        at_most.memory,
        _mean_exchange(run, network, setting),
        _flops(run, network, setting, steps=2) - _flops(run, network, setting, steps=1),
    )


def measured_exchange(run: Run) -> float:
    """Bytes of the messages down and up, of one device that answered in one round: mean over the run."""
    reports = [report for record in run.rounds for report in record.device_reports]
    if reports:
        return fmean(report.bytes_down + report.bytes_up for report in reports)
    sent = run.summary.bytes_down + run.summary.bytes_up
    return sent / run.summary.rounds / run.experiment.devices_per_round


def _mean_exchange(run: Run, network: NetworkFacts, setting: Setting) -> float:
    schedule = AdjustmentSchedule(run.experiment.adjust_every, run.experiment.last_adjustment)
    rates = [schedule.rate(record.round) if record.adjusted else 0.0 for record in run.rounds]
    at: Mapping[float, Estimate] = {
        rate: _estimate(run, network, replace(setting, adjustment_rate=rate)) for rate in set(rates)
    }
    return fmean(at[rate].exchange_adjusting if rate else at[rate].exchange for rate in rates)


def _flops(run: Run, network: NetworkFacts, setting: Setting, steps: int) -> float:
    """Of a round of this many steps; a step more costs the same wherever the dense gradient is."""
    return _estimate(run, network, replace(setting, epochs=steps)).flops


def _estimate(run: Run, network: NetworkFacts, setting: Setting) -> Estimate:
    found = estimate(run.experiment.method, find_terms(network, setting))
    assert found is not None
    return found


@cache
def _facts(
    model: str, width: int | None, stem: Stem, shape: tuple[int, int, int], classes: int
) -> NetworkFacts:
    experiment = Experiment(model=model, width=width, stem=stem)
    return network_facts(plain_network(experiment, shape, classes))
