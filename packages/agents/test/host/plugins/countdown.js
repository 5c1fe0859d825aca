// An environment of an operator: the player must say each number from `start` down to 1. The config can make it fail.
export default {
  name: 'countdown',
  description: 'counts down',
  config: { safeParse: (data) => ({ success: true, data: { start: 3, ...data } }) },
  create({ start, fail }) {
    let left = start;
    const state = (text) => ({ messages: [{ role: 'user', content: text }], stateHash: String(left) });
    return {
      async reset(seed) {
        if (fail === 'no_data') return null;
        left = start;
        return state(`seed ${seed}: say ${left}`);
      },
      async step({ content }) {
        if (fail === 'throw') throw new Error('the world broke');
        if (fail === 'crash')
          setTimeout(() => {
            throw new Error('thrown from a timer');
          });
        if (fail === 'exit') process.exit(3);
        if (fail === 'block') for (;;);
        if (fail === 'never' || fail === 'crash') await new Promise(() => {});
        if (fail === 'image') {
          const image = { type: 'image_url', image_url: { url: 'data:image/png;base64,?' } };
          return { messages: [{ role: 'user', content: [image] }], reward: 0, terminated: false, truncated: false };
        }
        const isRight = (content ?? '').trim() === String(left);
        if (isRight) left--;
        const done = left === 0;
        return {
          ...state(done ? 'done' : `say ${left}`),
          reward: isRight ? 1 / start : 0,
          terminated: done,
          truncated: false,
        };
      },
      async close() {},
    };
  },
};
