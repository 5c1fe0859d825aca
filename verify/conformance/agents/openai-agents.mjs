import { execFileSync } from 'node:child_process';
import { text } from 'node:stream/consumers';
import { Agent, run, setTracingDisabled, tool } from '@openai/agents';
import { z } from 'zod';

setTracingDisabled(true); // else its traces are sent to the vendor
const parameters = z.object({ command: z.string() });
const execute = ({ command }) => execFileSync('sh', ['-c', command], { encoding: 'utf8' });
const bash = tool({ name: 'bash', description: 'Runs a command', parameters, execute });
// OPENAI_BASE_URL, OPENAI_API_KEY
const agent = new Agent({ name: 'Agent', model: process.env.FLOE_MODEL, tools: [bash] });
await run(agent, await text(process.stdin));
