"""A runner in the form of ROLL: it is imported as it is where ROLL is installed, and by floe where ROLL is not."""

from doors import Doors
from roll.pipeline.agentic.agent_runner.base import AgentRunner, EpisodeResult


class DoorRunner(AgentRunner):
    def __init__(self, base_url, env_id, env_config, **kwargs):
        super().__init__(base_url, env_id, env_config, **kwargs)
        self.max_steps = env_config.get("max_steps", 8)

    def setup(self):
        self.env = Doors(**self.env_params)

    def run_job(self, seed):
        observation, info = self.env.reset(seed=seed)
        messages = [
            {"role": "system", "content": info["env_instruction"]},
            {"role": "user", "content": observation},
        ]
        rewards = []
        for _ in range(self.max_steps):
            reply = self._llm_request(None, messages)["choices"][0]["message"]["content"]
            messages.append({"role": "assistant", "content": reply})
            observation, reward, terminated, truncated, _ = self.env.step(reply)
            rewards.append(reward)
            if terminated or truncated:
                break
            messages.append({"role": "user", "content": observation})
        return EpisodeResult(status="Finished", score=sum(rewards), step_scores=rewards)
