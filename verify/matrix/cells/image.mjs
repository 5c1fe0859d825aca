import { PICTURE } from '../picture.mjs';
import { call, FINAL, grader, mainScenario, say, sideScenario, think } from '../script.mjs';

/** The policy only goes on to the file that is graded when it has been shown an image. */
export const cell = {
  name: 'image',
  title: 'an image that the harness reads reaches the engine',
  build({ row }) {
    const { image, shell } = row.calls;
    const main = mainScenario(row, [
      [think(), call(image('picture.png'))],
      [think(), say('There is no image in what I was given.')],
      FINAL,
    ]);
    const [first, blind, last] = main.rules;
    const seen = {
      ...blind,
      when: { ...blind.when, images: { min: 1 } },
      reply: [think(), call(shell('echo seen > seen.txt'))],
    };
    return {
      instruction: 'Look at picture.png. When you have seen it, write the word seen into seen.txt.',
      files: { 'picture.png': PICTURE },
      settings: row.settingsForImages,
      scenarios: [{ ...main, rules: [first, seen, blind, last] }, sideScenario(row)],
      grader: grader('grep -q seen seen.txt'),
      check({ main: replies, messages }) {
        const shown = replies.some((reply) => JSON.stringify(messages(reply)).includes('"type":"image_url"'));
        return shown ? [] : ['no request to the engine has an image'];
      },
    };
  },
};
