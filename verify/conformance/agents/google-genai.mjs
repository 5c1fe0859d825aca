import { execFileSync } from 'node:child_process';
import { text } from 'node:stream/consumers';
import { GoogleGenAI } from '@google/genai';

const bash = ({ command }) => execFileSync('sh', ['-c', command], { encoding: 'utf8' });
const parametersJsonSchema = { type: 'object', properties: { command: { type: 'string' } }, required: ['command'] };
const tools = [{ functionDeclarations: [{ name: 'bash', parametersJsonSchema }] }];
// The key is GOOGLE_API_KEY.
const client = new GoogleGenAI({ httpOptions: { baseUrl: process.env.FLOE_BASE_URL } });
const chat = client.chats.create({ model: process.env.FLOE_MODEL, config: { tools } });
let reply = await chat.sendMessage({ message: await text(process.stdin) });
while (reply.functionCalls) {
  const message = reply.functionCalls.map(({ id, name, args }) => ({
    functionResponse: { id, name, response: { output: bash(args) } },
  }));
  reply = await chat.sendMessage({ message });
}
