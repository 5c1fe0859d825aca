// S10: clients that send their request byte by byte, never read what they asked for, or only hold a connection.
import { readFileSync } from 'node:fs';
import { connect } from 'node:net';
import { setTimeout as sleep } from 'node:timers/promises';
import { underTraffic } from '../traffic.mjs';

const IDLE = 500;
const DRIBBLING = 50;
const NEVER_READING = 20;
/** Beyond the server's limit for headers and the interval in which it looks for such clients. */
const DRIBBLE_SECONDS = 20;
/** What a stuck stream may cost the server. */
const MEMORY_KB_EACH = 64;

export const slowClients = {
  id: 'S10',
  title: 'slow and stuck clients cost the others nothing',
  runs: { full: 3, quick: 1 },
  stores: ['sqlite'],
  async run({ runs, random }) {
    const options = { random, gateways: 2, feeder: { outstanding: 30 } };
    return underTraffic(options, async (world, trainer) => {
      const notes = [];
      for (let round = 0; round < runs; round++) notes.push(await siege(world, trainer));
      return { runs, note: notes.at(-1) };
    });
  },
};

async function siege(world, trainer) {
  const port = world.ports[0];
  const rssKb = () => Number(/VmRSS:\s+(\d+)/.exec(readFileSync(`/proc/${world.servers[0].pid}/status`, 'utf8'))[1]);
  const before = rssKb();
  const sockets = [];
  const open = (text) => {
    const socket = connect(port, '127.0.0.1');
    socket.on('error', () => {});
    if (text !== null) socket.write(text);
    sockets.push(socket);
    return socket;
  };
  for (let i = 0; i < IDLE; i++) open(null);
  for (let i = 0; i < NEVER_READING; i++) open('GET /events HTTP/1.1\r\nhost: x\r\n\r\n').pause();
  const dribbling = Array.from({ length: DRIBBLING }, () =>
    open('POST /rollout/task/submit HTTP/1.1\r\nhost: x\r\n').resume(),
  );
  const done = trainer.results.size;
  for (let second = 0; second < DRIBBLE_SECONDS; second++) {
    for (const socket of dribbling) if (!socket.destroyed) socket.write('a');
    await sleep(1_000);
  }
  const grownKb = rssKb() - before;
  const finished = trainer.results.size - done;
  if (finished === 0) trainer.wrongs.push('nobody else was served during the siege');
  const stuck = IDLE + DRIBBLING + NEVER_READING;
  // Traffic itself grows the heap by some; the promise is about each stuck client.
  if (grownKb > stuck * MEMORY_KB_EACH)
    trainer.wrongs.push(`the server grew by ${grownKb} KB under ${stuck} stuck clients`);
  const cutOff = dribbling.filter((socket) => socket.destroyed || socket.readableEnded).length;
  for (const socket of sockets) socket.destroy();
  if (cutOff < DRIBBLING)
    trainer.wrongs.push(
      `${DRIBBLING - cutOff} of ${DRIBBLING} dribbling clients were not cut off in ${DRIBBLE_SECONDS} s`,
    );
  return `${finished} sessions beside ${stuck} stuck clients, ${(grownKb / stuck).toFixed(1)} KB each`;
}
