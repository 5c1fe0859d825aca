// An MCP server over stdio or, with a port to print, over HTTP. Its first argument names what is wrong with it.
import { createServer } from 'node:http';
import { createInterface } from 'node:readline';

const [mode = 'good', transport = 'stdio'] = process.argv.slice(2);
const PIXEL = 'iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==';

const schema = { type: 'object', properties: { text: { type: 'string' } }, required: ['text'] };
const nothing = { type: 'object' };
const TOOLS = [
  { name: 'echo', description: 'Says the text.', inputSchema: schema },
  { name: 'die', description: 'Ends the server.', inputSchema: nothing },
  { name: 'fail', description: 'Fails.', inputSchema: nothing },
  { name: 'refuse', description: 'Is refused by the protocol.', inputSchema: nothing },
  { name: 'hang', description: 'Never answers.', inputSchema: nothing },
  { name: 'a.picture', description: 'Shows a picture.', inputSchema: nothing },
  ...(mode === 'huge' ? [{ name: 'huge', description: 'x'.repeat(100_000), inputSchema: nothing }] : []),
  ...(mode === 'broken'
    ? [{ name: 'broken', description: '', inputSchema: { type: 'object', $ref: '#/absent' } }]
    : []),
];

function contentOf({ name, arguments: args }) {
  if (name === 'echo') return { content: [{ type: 'text', text: `${args.text} ${process.env.GREETING ?? ''}` }] };
  if (name === 'fail') return { content: [{ type: 'text', text: 'it failed' }], isError: true };
  return {
    content: [
      { type: 'text', text: 'look' },
      { type: 'image', data: PIXEL, mimeType: 'image/png' },
      { type: 'resource_link', uri: 'file:///x', name: 'x' },
    ],
  };
}

/** Returns the answer to a message; null for none. */
function answer({ id, method, params }) {
  if (id === undefined) return null;
  const reply = (result) => ({ jsonrpc: '2.0', id, result });
  if (method === 'initialize') {
    const { protocolVersion } = params;
    const serverInfo = { name: 'test', version: '1' };
    return reply({ protocolVersion, capabilities: { tools: {} }, serverInfo, instructions: 'Echo is for texts.' });
  }
  if (method === 'tools/list') {
    if (mode === 'endless') return reply({ tools: TOOLS.slice(0, 1), nextCursor: `${id}` });
    return reply({ tools: TOOLS });
  }
  if (method !== 'tools/call') return reply({});
  if (params.name === 'die') process.exit(3);
  if (params.name === 'hang') return null;
  if (params.name === 'refuse') return { jsonrpc: '2.0', id, error: { code: -32_602, message: 'no such thing' } };
  return reply(contentOf(params));
}

if (mode === 'silent') process.exit(1);
if (transport === 'http') {
  const server = createServer(async (request, response) => {
    if (request.method !== 'POST' || request.headers['x-key'] !== 'secret') {
      response.writeHead(request.method === 'POST' ? 401 : 405).end();
      return;
    }
    const chunks = [];
    for await (const chunk of request) chunks.push(chunk);
    const result = answer(JSON.parse(Buffer.concat(chunks).toString()));
    if (result === null) response.writeHead(202).end();
    else response.writeHead(200, { 'content-type': 'application/json' }).end(JSON.stringify(result));
  });
  server.listen(0, '127.0.0.1', () => console.log(server.address().port));
} else {
  createInterface({ input: process.stdin }).on('line', (line) => {
    const result = answer(JSON.parse(line));
    if (result !== null) console.log(JSON.stringify(result));
  });
}
