"""A runner in the form that ROLL's documentation describes, without any word of floe."""

import httpx
from roll.pipeline.agentic.agent_runner.base import AgentRunner, EpisodeResult
from worlds import Countdown


class CountdownRunner(AgentRunner):
    def __init__(self, base_url, env_id, env_config, **kwargs):
        super().__init__(base_url, env_id, env_config, **kwargs)
        self.max_steps = env_config.get("max_steps", 10)
        self.setups = 0

    def setup(self):
        self.setups += 1
        self.env = Countdown(**self.env_params)

    def run_job(self, seed: int) -> EpisodeResult:
        observation, _ = self.env.reset(seed=seed)
        messages = [{"role": "user", "content": observation}]
        rewards = []
        with httpx.Client(timeout=3600.0) as client:
            for _ in range(self.max_steps):
                reply = self._llm_request(client, messages)
                action = reply["choices"][0]["message"]["content"]
                messages.append({"role": "assistant", "content": action})
                observation, reward, terminated, truncated, _ = self.env.step(action)
                rewards.append(reward)
                if terminated or truncated:
                    break
                messages.append({"role": "user", "content": observation})
        return EpisodeResult(
            status=self.env_config.get("status", "Finished"),
            score=sum(rewards),
            step_scores=rewards,
            agent_exit_reason=f"{self.setups} setups, mode {self.mode}",
            metrics={"steps": len(rewards)},
        )


class KeptRunner(CountdownRunner):
    reused = True


class ConstructedRunner(CountdownRunner):
    """Sets itself up in its constructor, as some runners do."""

    def __init__(self, base_url, env_id, env_config, **kwargs):
        super().__init__(base_url, env_id, env_config, **kwargs)
        self.setup()


class BrokenRunner(AgentRunner):
    def run_job(self, seed):
        if self.env_config["deed"] == "nonsense":
            return "done"
        raise KeyError("no such row")


class HttpRunner(AgentRunner):
    """Asks the model at `base_url` with its own means."""

    async def run_job(self, seed):
        episode, self.episode = self.episode, None
        try:
            reply = self._llm_request(None, [{"role": "user", "content": "say 1"}])
        finally:
            self.episode = episode
        return EpisodeResult("Finished", float(reply["choices"][0]["message"]["content"] == "1"))


class Unfinished(AgentRunner):
    """Lacks `run_job`."""
