import { z } from 'zod';
import type { Episode } from '../loop/episode.ts';
import { pushInstruction } from '../loop/loop.ts';

/** Setting of a task that replaces the system prompt of an agent. */
export const promptSetting = z
  .string()
  .min(1)
  .nullable()
  .optional()
  .describe("system prompt in place of the agent's own; null for none");

/** Starts the conversation with the system prompt of the task or, without one, of the agent. `{workdir}` stands for the working directory. */
export function pushWithPrompt(episode: Episode<{ readonly prompt?: string | null | undefined }>, own: string): void {
  const { prompt } = episode.settings;
  const text = prompt === undefined ? own : prompt;
  pushInstruction(episode, text?.replaceAll('{workdir}', episode.box?.workdir ?? '.') ?? null);
}
