"""Digits: data, classifiers, the policy that sees images, denoising, and what is said about mistakes."""

from __future__ import annotations

import math
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from envs.diffusion import classifier as classifiers
from envs.diffusion.denoising import Denoising
from envs.diffusion.digits import Digits, Images, digits, evenness, mnist, real_images, small_digits
from envs.diffusion.environment import Diffusion
from envs.diffusion.guided import Guided
from envs.diffusion.painting import sheet
from envs.diffusion.policies import Reversed
from envs.diffusion.processes import Noising
from envs.diffusion.targets import gaussians25
from envs.diffusion.transformer import ImagePolicy
from gfn.check import check_environment, check_policy
from gfn.objectives import Alpha, DevGrad, Objective
from gfn.objectives.parts import backward_in_parts
from gfn.policies import Prior
from gfn.sampling import rollout
from tests.small_digits import bars


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(classifiers, "UPDATES", 100)


def small(tmp_path: Path, classes=(0, 2, 4, 6, 8), steps: int = 5) -> Diffusion:
    return Diffusion(Digits(bars(), classes, tmp_path), steps)


def policy_of(env: Diffusion) -> ImagePolicy:
    torch.manual_seed(0)
    policy = ImagePolicy(env, Noising(1.0), width=8, depth=1, heads=2)
    for parameter in policy.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    return policy


def test_digits_of_scikit_learn() -> None:
    images = small_digits()
    assert images.pixels.shape == (1797, 8, 8)
    assert images.pixels.aminmax() == (-1.0, 1.0)
    assert torch.bincount(images.label).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]


def test_reward_is_the_probability_of_the_classes(tmp_path: Path) -> None:
    env = small(tmp_path, classes=(3, 5))
    target = env.target
    x = torch.randn(7, 16)
    p = target.classifier(x).exp()
    assert torch.allclose(env.log_reward(env.ends(x)), (p[:, 3] + p[:, 5]).log(), atol=1e-6)
    everything = small(tmp_path, classes=range(10))
    assert everything.log_reward(everything.ends(x)).equal(torch.zeros(7))
    assert real_images(env).x.shape == (12, 16)
    judged = target.judged(target.images.pixels.flatten(1))
    assert float((judged == target.images.label).float().mean()) > 0.9
    assert not target.judge(x).equal(target.classifier(x))  # each has seen another half of the data


def test_classifiers_are_trained_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = small(tmp_path).target
    assert len(list(tmp_path.glob("classifier_*.pt"))) == 2
    monkeypatch.setattr(classifiers, "_train", None)  # to train again would fail
    second = small(tmp_path).target
    x = torch.randn(3, 16)
    assert first.classifier(x).equal(second.classifier(x))
    before = torch.get_rng_state()
    small(tmp_path)
    assert torch.get_rng_state().equal(before)


def test_summary_counts_by_the_judge(tmp_path: Path) -> None:
    target = small(tmp_path).target
    images = target.images.pixels.flatten(1)
    chosen = torch.cat([images[target.judged(images) == c][:k] for c, k in ((0, 4), (2, 4), (4, 2), (7, 2))])
    found = target.summary(chosen, torch.zeros(12))
    assert found["on_target"] == pytest.approx(10 / 12)
    wanted = -(0.4 * math.log(0.4) * 2 + 0.2 * math.log(0.2)) / math.log(5)
    assert found["class_entropy"] == pytest.approx(wanted)


def test_evenness_of_a_histogram() -> None:
    assert evenness(torch.tensor([5, 5, 5, 5])) == pytest.approx(1.0)
    assert evenness(torch.tensor([5, 0, 0])) == 0.0
    assert evenness(torch.tensor([0, 0])) == 0.0
    assert evenness(torch.tensor([7])) == 1.0


def test_contract_is_kept(tmp_path: Path) -> None:
    env = small(tmp_path)
    policy, backward = policy_of(env), Reversed(env, Noising(1.0))
    check_environment(env, policy, backward, n=8)
    check_policy(policy, env, n=8)


def test_images_are_cut_into_patches_and_put_together_again(tmp_path: Path) -> None:
    """With identity layers and no blocks that act, a transformer gives back its image."""
    network = ImagePolicy(small(tmp_path), Noising(1.0), width=4, depth=1, heads=1).network
    network.inward.weight.data, network.outward.weight.data = torch.eye(4), torch.eye(4)
    network.place.data.zero_()
    network.inward.bias.data.zero_()
    network.norm = torch.nn.Identity()
    images = torch.randn(3, 4, 4)
    zero = torch.zeros(3, dtype=torch.long)
    assert network(images, zero, zero).equal(images)


@pytest.mark.usefixtures("float64")
def test_steps_to_a_known_image_are_those_of_the_process_given_its_end(tmp_path: Path) -> None:
    """∏ P_F(x_t | x_{t−1}, x_T) over t < T is ∏ P_B(x_{t−1} | x_t), if the clean image is known."""
    env = small(tmp_path)
    backward, policy = Reversed(env, Noising(1.0)), ImagePolicy(env, Noising(1.0), width=4, depth=1, heads=1)
    policy.error.zero_()
    t = rollout(env, backward, real_images(env), backward=True, generator=torch.Generator().manual_seed(0))
    policy.clean = lambda states: t.final.x[t.row]
    forth, back = t.pad(policy.log_prob(t)), t.pad(backward.log_prob_backward(t))
    assert torch.allclose(forth[:, :-1].sum(1), back.sum(1))
    assert forth[:, -1].equal(torch.zeros(len(t)))  # then the last step is certain


def test_denoising_is_the_squared_error_of_v(tmp_path: Path) -> None:
    env = small(tmp_path, classes=range(10))
    policy, process = policy_of(env), Noising(1.0)
    objective = Denoising(policy, Reversed(env, process), decay=0.5)
    t = rollout(env, objective.backward_policy, real_images(env), backward=True)
    _, spread = process(5).from_end()
    spread[0] = 1.0
    error = (policy.clean(t.sources) - t.final.x[t.row]).square().mean(1).view(60, 5)
    loss, _ = objective(t)
    assert loss.item() == pytest.approx(0.5 * (error / spread[:-1].float().square()).mean().item(), rel=1e-5)
    assert torch.allclose(policy.error, 0.5 + 0.5 * error.mean(0), atol=1e-5)
    whole = torch.autograd.grad(loss, list(policy.parameters()))
    backward_in_parts(objective, t, 0, 16)
    for parameter, gradient in zip(policy.parameters(), whole, strict=True):
        assert torch.allclose(parameter.grad, gradient, atol=1e-5)
    kept = policy.error.clone()
    scores = objective.eval().scores(t)
    assert torch.allclose(scores.log_pf, t.pad(policy.log_prob(t)))
    assert policy.error.equal(kept)


def test_errors_at_times_that_a_batch_lacks_stay(tmp_path: Path) -> None:
    policy = policy_of(small(tmp_path))
    policy.observe(torch.tensor([1, 1, 3]), torch.tensor([0.2, 0.4, 0.0]), decay=0.0)
    assert policy.error.tolist() == pytest.approx([1.0, 0.3, 1.0, 0.0, 1.0])


def test_relative_balance_begins_with_the_reward(tmp_path: Path) -> None:
    env = small(tmp_path)
    policy = policy_of(env)
    objective = Objective(policy, Prior(policy), Alpha(0.5), DevGrad())
    t = rollout(env, policy, env.reset(8), generator=torch.Generator().manual_seed(0))
    assert torch.allclose(objective.scores(t).excess, -t.log_reward.double(), atol=1e-5)
    loss, _ = objective(t)
    loss.backward()
    assert all(p.grad is not None and bool(p.grad.isfinite().all()) for p in policy.parameters())


@pytest.mark.usefixtures("float64")
def test_guidance_moves_steps_along_the_gradient_of_the_reward(tmp_path: Path) -> None:
    env = small(tmp_path)
    policy = policy_of(env)
    t = rollout(env, policy, env.reset(4), generator=torch.Generator().manual_seed(0))
    plain, guided = policy.distribution(t.sources), Guided(env, policy, 0.5).distribution(t.sources)
    clean = policy.clean(t.sources).detach().requires_grad_()
    (gradient,) = torch.autograd.grad(env.target.log_density(clean, t.sources.label).sum(), clean)
    small_enough = (plain.std * gradient).abs() < 1
    wanted = plain.mean + 0.5 * plain.std.square() * gradient
    assert bool(small_enough.any())
    assert torch.allclose(guided.mean[small_enough], wanted[small_enough])
    assert bool(((guided.mean - plain.mean).abs() <= 0.5 * plain.std + 1e-12).all())
    assert guided.std.equal(plain.std)
    check_policy(Guided(env, policy), env, n=8)


def test_images_on_a_sheet() -> None:
    pictures = torch.arange(3.0).view(3, 1, 1).expand(3, 2, 2)
    assert sheet(pictures, 2).tolist() == [
        [0, 0, -1, 1, 1, -1],
        [0, 0, -1, 1, 1, -1],
        [-1] * 6,
        [2, 2, -1, -1, -1, -1],
        [2, 2, -1, -1, -1, -1],
        [-1] * 6,
    ]


def test_scikit_learn_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(ImportError, match=re.escape("pip install 'fgfn[digits]'")):
        digits()


def test_mnist_is_read_where_torchvision_keeps_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=re.escape("give env.root=")):
        mnist(None)
    monkeypatch.setitem(sys.modules, "torchvision.datasets", None)
    with pytest.raises(ImportError, match="pip install torchvision"):
        mnist(tmp_path)

    def missing(root, train, download):
        raise RuntimeError("Dataset not found.")

    monkeypatch.setitem(sys.modules, "torchvision", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "torchvision.datasets", SimpleNamespace(MNIST=missing))
    with pytest.raises(FileNotFoundError, match=r"there is no MNIST in .*download=True"):
        mnist(tmp_path)

    def found(root, train, download):
        data = torch.arange(20 * 28 * 28).view(20, 28, 28) % 256
        return SimpleNamespace(data=data.to(torch.uint8), targets=torch.arange(20) % 10)

    monkeypatch.setitem(sys.modules, "torchvision.datasets", SimpleNamespace(MNIST=found))
    env = digits("mnist", tmp_path, classes="odd", steps=3, cache=tmp_path)
    assert env.dim == 784
    assert env.target.images.pixels.aminmax() == (-1.0, 1.0)
    policy = ImagePolicy(env, Noising(1.0), patch=4, width=8, depth=1, heads=1)
    assert rollout(env, policy, env.reset(2)).final.x.shape == (2, 784)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda env: Images(torch.zeros(3, 64), torch.zeros(3)), "expected pixels [N, H, W]"),
        (lambda env: Images(torch.zeros(3, 8, 8), torch.zeros(2)), "labels [N], got [3, 8, 8] and [2]"),
        (lambda env: Digits(bars(), ()), "at least one, got ()"),
        (lambda env: Digits(bars(), (3, 12)), "digits from 0 to 9"),
        (lambda env: digits(classes="prime"), "one of all, even, odd, a digit or a list of them, got 'prime'"),
        (lambda env: digits(data="cifar"), "data must be digits or mnist, got 'cifar'"),
        (lambda env: ImagePolicy(env, Noising(), patch=3), "must divide both sides of images of 4 × 4 pixels"),
        (lambda env: ImagePolicy(env, Noising(), width=6, heads=4), "and policy.heads policy.width"),
        (lambda env: ImagePolicy(Diffusion(gaussians25()), Noising()), "has none: use policy=diffusion"),
        (lambda env: real_images(Diffusion(gaussians25())), "real_images needs env=digits"),
        (lambda env: env.ends(torch.zeros(2, 64)), "expected places of shape [N, 16], got [2, 64]"),
        (lambda env: Denoising(policy_of(env), Reversed(env, Noising()), decay=1.0), "decay must lie in [0, 1)"),
    ],
)
def test_mistakes_are_told_before_training(wrong, message: str, tmp_path: Path) -> None:
    env = small(tmp_path)
    with pytest.raises(ValueError, match=re.escape(message)):
        wrong(env)
