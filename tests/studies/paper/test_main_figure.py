from fedmef.studies.paper.main_figure import STUDY


def test_the_paper_scale_has_every_panel() -> None:
    experiments = STUDY.experiments("paper", seeds=1).values()
    panels = {(experiment.dataset, experiment.model) for experiment in experiments}
    assert len(panels) == 3 * 2
    assert len(experiments) == 6 * (1 + 3 * 4)


def test_it_has_the_numbers_of_the_papers_tables() -> None:
    desk = {case.name: case.paper for case in STUDY.cases("desk")}
    accuracy, memory = "accuracy % (paper)", "memory MB (paper, estimated)"
    assert desk["cifar10-resnet18-fedmef-sparsity0.9"] == {accuracy: 78.1, memory: None}
    assert desk["cifar10-resnet18-fedmef-sparsity0.8"] == {accuracy: 81.7, memory: 45.91}
    assert desk["cifar10-resnet18-fedavg-sparsity0.0"] == {accuracy: 81.2, memory: 120.74}
    assert desk["cifar10-resnet18-fl_pqsu-sparsity0.9"] == {accuracy: None, memory: None}
    paper = {case.name: case.paper for case in STUDY.cases("paper")}
    assert paper["cifar10-mobilenet_v2-fedmef-sparsity0.8"] == {accuracy: 65.50, memory: 84.94}
    assert paper["cinic10-resnet18-fedmef-sparsity0.8"] == {}
