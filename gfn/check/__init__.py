"""The contract of environments and policies, examined clause by clause: ``check_environment(MyEnvironment())``."""

from gfn.check.contract import ContractError
from gfn.check.environment import check_environment
from gfn.check.policy import check_policy

__all__ = ["ContractError", "check_environment", "check_policy"]
