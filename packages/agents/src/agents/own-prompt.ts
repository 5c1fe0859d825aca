import { z } from 'zod';
import type { Episode } from '../loop/episode.ts';
import { pushInstruction } from '../loop/loop.ts';

/** Setting with which a task replaces the system prompt of an agent. */
export const promptSetting = z
  .string()
  .min(1)
  .nullable()
  .optional()
  .describe("system prompt in place of the agent's own; null for none");

/** Starts the conversation with the agent's system prompt, or with that of the task in its place. `{workdir}` stands for the working directory. */
export function pushWithPrompt(episode: Episode<{ readonly prompt?: string | null | undefined }>, own: string): void {
  const { prompt } = episode.settings;
  const text = prompt === undefined ? own : prompt;
  pushInstruction(episode, text?.replaceAll('{workdir}', episode.box?.workdir ?? '.') ?? null);
}
