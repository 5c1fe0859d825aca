import { execFileSync } from 'node:child_process';
import { text } from 'node:stream/consumers';
import Anthropic from '@anthropic-ai/sdk';
import { betaZodTool } from '@anthropic-ai/sdk/helpers/beta/zod';
import { z } from 'zod';

const inputSchema = z.object({ command: z.string() });
const run = ({ command }) => execFileSync('sh', ['-c', command], { encoding: 'utf8' });
const bash = betaZodTool({ name: 'bash', description: 'Runs a command', inputSchema, run });
const messages = [{ role: 'user', content: await text(process.stdin) }];
const client = new Anthropic(); // ANTHROPIC_BASE_URL, ANTHROPIC_API_KEY
await client.beta.messages.toolRunner({ model: process.env.FLOE_MODEL, max_tokens: 2000, messages, tools: [bash] });
