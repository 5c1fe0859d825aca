import { AgentRunner } from 'floe/plugins';

/** A runner of an operator: its model must say each number from 3 down to 1. `envConfig.mode` can make it fail. */
export default class CountdownRunner extends AgentRunner {
  static reused = true;
  setups = 0;
  jobs = 0;

  async setup() {
    this.setups++;
  }

  async runJob(seed) {
    const { mode } = this.envConfig;
    this.jobs++;
    if (mode === 'throw') throw new Error('the job broke');
    if (mode === 'nonsense') return 'done';
    const messages = [{ role: 'user', content: `seed ${seed}: say 3` }];
    const stepScores = [];
    for (const number of [3, 2, 1]) {
      const reply = mode === 'http' ? await this.post(messages) : await this.llmRequest(messages);
      const { message } = reply.choices[0];
      stepScores.push(message.content === String(number) ? 1 / 3 : 0);
      if (number > 1) messages.push(message, { role: 'user', content: `say ${number - 1}` });
    }
    const score = stepScores.reduce((sum, value) => sum + value);
    return {
      status: this.envConfig.status ?? 'Finished',
      score,
      stepScores: mode === 'miscount' ? stepScores.slice(1) : stepScores,
      agentExitReason: `job ${this.jobs} after ${this.setups} setups`,
      metrics: { said: 3 },
    };
  }

  /** Calls the model over HTTP, as a program without floe would. */
  async post(messages) {
    const reply = await fetch(`${this.baseUrl}/v1/chat/completions`, {
      method: 'POST',
      headers: { authorization: `Bearer ${this.envId}`, 'content-type': 'application/json' },
      body: JSON.stringify({ model: 'policy', messages }),
    });
    return reply.json();
  }
}
