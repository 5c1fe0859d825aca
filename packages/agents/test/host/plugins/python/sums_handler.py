"""A handler in the form of ProRL Agent, for tests."""

import os

from floe.handler import AgentHandler


class Sums(AgentHandler):
    data_sources = ["python_sums"]
    description = "adds two numbers"

    async def init(self, job):
        if job.instance.get("init") == "rescue":
            job.llm_request([{"role": "user", "content": "What is 1 + 2?"}])
        self.fail(job, "init")
        return {"expected": job.instance["a"] + job.instance["b"]}

    async def run(self, job, state):
        question = f"What is {job.instance['a']} + {job.instance['b']}?"
        reply = job.llm_request([{"role": "user", "content": question}])
        self.fail(job, "run")
        if job.instance.get("run") == "vanish":
            os._exit(3)
        if job.episode.workdir is not None:
            job.episode.write_file("answer.txt", reply["choices"][0]["message"]["content"])
            return job.episode.run("cat answer.txt")["stdout"]
        return reply["choices"][0]["message"]["content"]

    def eval(self, job, state, artifacts):
        self.fail(job, "eval")
        return {"score": float(artifacts == str(state["expected"])), "answer": artifacts, "metrics": {"sums": 1}}

    def init_exception(self, job, error):
        return self.rescue(job, "init", error)

    def run_exception(self, job, error, state):
        return self.rescue(job, "run", error)

    def eval_exception(self, job, error, state, artifacts):
        return self.rescue(job, "eval", error)

    def final_result(self, job, result):
        result["metrics"] = {**(result.get("metrics") or {}), "final": 1}
        return result

    def fail(self, job, stage):
        if job.instance.get(stage) in ("fail", "rescue"):
            raise LookupError(f"{stage} broke")

    def rescue(self, job, stage, error):
        assert isinstance(error, Exception)
        return 0.5 if job.instance.get(stage) == "rescue" else None


class NoSources(AgentHandler):
    def run(self, job, state):
        pass

    def eval(self, job, state, artifacts):
        pass
