import { writeFile } from 'node:fs/promises';
import { systemClock } from '@floe-rl/core';
import { z } from 'zod';
import { defineAgent } from '#floe/plugins/index';

const settingsSchema = z.strictObject({
  /** Number of replies that are asked for. */
  asks: z.int(),
  /** File to which the time of each call in milliseconds is written, as JSON. */
  file: z.string().nullable().default(null),
  /** Time in milliseconds for which the agent blocks its process after its first reply. */
  block_ms: z.number().default(0),
});

/** Asks the model again and again in one conversation, as an agent with short observations does. */
export const agent = defineAgent({
  name: 'asker',
  description: 'asks the model a number of times',
  settings: settingsSchema,
  async run({ conversation, settings }) {
    const times: number[] = [];
    for (let index = 0; index < settings.asks; index++) {
      conversation.push({ role: 'user', content: `observation ${index}` });
      const startedMs = systemClock.monotonicMs();
      await conversation.ask();
      times.push(systemClock.monotonicMs() - startedMs);
      if (index === 0 && settings.block_ms > 0) block(settings.block_ms);
    }
    if (settings.file !== null) await writeFile(settings.file, JSON.stringify(times));
    return { status: 'finished', score: 1, reason: 'it has asked enough' };
  },
});

function block(milliseconds: number): void {
  const untilMs = systemClock.monotonicMs() + milliseconds;
  while (systemClock.monotonicMs() < untilMs);
}
