"""A handler in the form of ProRL Agent, for the data source `capitals`."""

from floe.handler import AgentHandler


class Capitals(AgentHandler):
    data_sources = ["capitals"]

    def init(self, job):
        return job.instance["answer"]

    def run(self, job, expected):
        question = f"What is the capital of {job.instance['country']}? Answer with its name alone."
        reply = job.llm_request([{"role": "user", "content": question}])
        return reply["choices"][0]["message"]["content"].strip()

    def eval(self, job, expected, answer):
        return {"score": float(answer == expected), "answer": answer}

    def run_exception(self, job, error, expected):
        """Without an evaluation from here, the session has no reward and is no sample."""
        return None
