import { execFileSync } from 'node:child_process';
import { text } from 'node:stream/consumers';
import { createAnthropic } from '@ai-sdk/anthropic';
import { generateText, stepCountIs, tool } from 'ai';
import { z } from 'zod';

const inputSchema = z.object({ command: z.string() });
const execute = ({ command }) => execFileSync('sh', ['-c', command], { encoding: 'utf8' });
const bash = tool({ description: 'Runs a command', inputSchema, execute });
// The key is ANTHROPIC_API_KEY; this provider's base URL has the version in it.
const provider = createAnthropic({ baseURL: `${process.env.FLOE_BASE_URL}/v1` });
const model = provider(process.env.FLOE_MODEL);
await generateText({ model, tools: { bash }, stopWhen: stepCountIs(20), prompt: await text(process.stdin) });
