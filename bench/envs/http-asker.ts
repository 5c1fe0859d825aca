// Makes the same model calls as asker-agent.ts over HTTP, through the session's proxy. Arguments: number of calls, file for the times.
import { writeFile } from 'node:fs/promises';
import { systemClock } from '@floe-rl/core';
import { Pool } from 'undici';

const [asks = '0', file = ''] = process.argv.slice(2);
const base = new URL(`${process.env.FLOE_BASE_URL}/v1/chat/completions`);
const pool = new Pool(base.origin, { connections: 1 });
const messages: object[] = [];
const times: number[] = [];
for (let index = 0; index < Number(asks); index++) {
  messages.push({ role: 'user', content: `observation ${index}` });
  const startedMs = systemClock.monotonicMs();
  const { body, statusCode } = await pool.request({
    path: base.pathname,
    method: 'POST',
    headers: { 'content-type': 'application/json', authorization: `Bearer ${process.env.OPENAI_API_KEY}` },
    body: JSON.stringify({ model: 'policy', messages }),
  });
  const reply = (await body.json()) as { readonly choices: readonly { readonly message: object }[] };
  times.push(systemClock.monotonicMs() - startedMs);
  if (statusCode !== 200) throw new Error(JSON.stringify(reply));
  messages.push(reply.choices[0]?.message ?? {});
}
await writeFile(file, JSON.stringify(times));
await pool.close();
