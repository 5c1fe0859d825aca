// The smallest agent that holds a conversation: some turns with the model, each with the whole history, and a file at the end.
import { writeFileSync } from 'node:fs';

const TURNS = 4;
const messages = [{ role: 'user', content: process.argv[2] ?? 'Tell of a port.' }];
for (let turn = 0; turn < TURNS; turn++) {
  const reply = await fetch(`${process.env.OPENAI_BASE_URL}/chat/completions`, {
    method: 'POST',
    headers: { authorization: `Bearer ${process.env.OPENAI_API_KEY}`, 'content-type': 'application/json' },
    body: JSON.stringify({ model: 'policy', messages, max_tokens: 96 }),
  });
  if (!reply.ok) throw new Error(`the model answered ${reply.status}: ${await reply.text()}`);
  const { message } = (await reply.json()).choices[0];
  messages.push(message, { role: 'user', content: `Go on, part ${turn + 2}.` });
}
writeFileSync('story.json', JSON.stringify(messages));
