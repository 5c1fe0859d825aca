// A handler of an operator for sums. The instance can make each stage fail.
const failing = ({ instance }, stage) => {
  if (instance.fail === stage) throw new Error(`${stage} broke`);
};
const seen = (stage) => (job, error) => {
  job.episode.count(`exceptions.${stage}`);
  return job.instance.rescue === stage ? { score: 0.25, reason: `rescued from: ${error.message}` } : null;
};

export default {
  description: 'adds two numbers',
  dataSources: ['sums', 'more-sums'],
  async init(job) {
    failing(job, 'init');
    return { expected: job.instance.a + job.instance.b };
  },
  async run(job, { expected }) {
    const { conversation, signal } = job.episode;
    if (job.instance.wait) await new Promise((_, fail) => signal.addEventListener('abort', () => fail(signal.reason)));
    conversation.push({ role: 'user', content: `${job.episode.instruction} (${typeof expected})` });
    const { message } = await conversation.ask();
    failing(job, 'run');
    return { answer: message.content };
  },
  async eval(job, { expected }, { answer }) {
    failing(job, 'eval');
    return { score: answer === String(expected) ? 1 : 0, answer, metrics: { characters: answer.length } };
  },
  initException: seen('init'),
  runException: seen('run'),
  evalException: seen('eval'),
  finalResult: (_job, result) => ({ ...result, metrics: { ...result.metrics, failed: result.failedStage ? 1 : 0 } }),
};
