import { claudeCode } from './claude-code.ts';
import { codex } from './codex.ts';
import { copilotCli } from './copilot-cli.ts';
import { geminiCli } from './gemini-cli.ts';
import type { Family } from './harness-rules.ts';
import { opencode } from './opencode.ts';
import { pi } from './pi.ts';
import { qwenCode } from './qwen-code.ts';

/** Every harness whose calls can be told apart. Any other's are all the main agent's. */
export const FAMILIES: readonly Family[] = [claudeCode, codex, opencode, copilotCli, geminiCli, qwenCode, pi];
