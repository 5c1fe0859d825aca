// An agent of an operator: does what the model replies, one word after the other.
export const agent = {
  name: 'obedient',
  description: 'does what the model replies',
  settings: { safeParse: (data) => ({ success: true, data }) },
  async run({ conversation, count, signal }) {
    for (;;) {
      const { message } = await conversation.ask();
      count(message.content);
      switch (message.content) {
        case 'exit':
          process.exit(3);
          break;
        case 'throw':
          throw new Error('a defect');
        case 'reject':
          void Promise.reject(new Error('an unhandled rejection'));
          await new Promise(() => {});
          break;
        case 'block':
          for (;;);
        case 'junk':
          for (const junk of [null, 'ready', [], { type: 'result', id: 1 }, { type: 'error', id: 'x' }])
            process.send(junk);
          for (const name of ['perform', 'crash', 'toString']) process.send({ type: 'notice', name });
          break;
        case 'sleep':
          await new Promise(() => {});
          break;
        case 'bad result':
          return { status: 'finished', score: Number.NaN, reason: '' };
        case 'finish':
          return { status: 'finished', score: 1, reason: 'told to', answer: String(signal.aborted) };
      }
    }
  },
};
