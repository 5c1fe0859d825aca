// S18: callbacks that would make the server talk to itself, to the cloud's metadata or to anything that is no trainer.
import { createServer } from 'node:http';
import { setTimeout as sleep } from 'node:timers/promises';
import { underTraffic } from '../traffic.mjs';

/** Refused at submission, by a server that listens on loopback with the usual configuration. */
const REFUSED = [
  'file:///etc/passwd',
  'gopher://127.0.0.1:70/',
  'ftp://127.0.0.1/',
  'data:text/plain,x',
  'http://169.254.169.254/latest/meta-data/',
  'http://[::ffff:169.254.169.254]/',
  'http://2852039166/',
  'http://0xa9fea9fe/',
  'http://0251.0376.0251.0376/',
  'http://169.254.169.254.nip.io/',
  'http://metadata.google.internal/',
  'http://10.0.0.1/',
  'http://172.16.0.1/',
  'http://192.168.0.1/',
  'http://[fe80::1]/',
  'http://[fd00::1]/',
  'http://[::]/',
  'http://0.0.0.0/',
  'http://0/',
  'http://224.0.0.1/',
  'http://255.255.255.255/',
  'http://user:password@127.0.0.1/',
  'http://8.8.8.8/',
  'http://example.com/',
  'http://127.0.0.1.example.com/',
  'http:///x',
  'javascript:alert(1)',
  '//127.0.0.1/',
  'http://[::ffff:8.8.8.8]/',
  'http://[64:ff9b::169.254.169.254]/',
];

export const ssrf = {
  id: 'S18',
  title: 'callbacks go to trainers only, and follow nobody elsewhere',
  runs: { full: REFUSED.length + 1, quick: REFUSED.length + 1 },
  stores: ['sqlite'],
  async run({ random }) {
    const options = { random, gateways: 1, feeder: { outstanding: 4, callbacks: false } };
    return underTraffic(options, async (world, trainer) => {
      for (const url of REFUSED) {
        const refused = await trainer.client.submit(world.task({ callback_url: url })).then(
          () => null,
          (error) => error,
        );
        if (refused === null) trainer.wrongs.push(`callback_url ${url} was taken`);
        else if (refused.code !== 'schema_violation') trainer.wrongs.push(`callback_url ${url}: ${refused.code}`);
        else if (!JSON.stringify(refused.details).includes('callback_url'))
          trainer.wrongs.push(`${url}: the field is not named`);
      }
      await followsNobody(world, trainer);
      return { runs: REFUSED.length + 1 };
    });
  },
};

/** A trainer that redirects: the target must never be asked. */
async function followsNobody(world, trainer) {
  let followed = 0;
  let asked = 0;
  const target = createServer((_, reply) => {
    followed++;
    reply.end();
  });
  const redirecting = createServer((_, reply) => {
    asked++;
    reply.writeHead(asked < 3 ? 307 : 200, { location: `http://127.0.0.1:${target.address().port}/` }).end();
  });
  for (const server of [target, redirecting]) await new Promise((resolve) => server.listen(0, '127.0.0.1', resolve));
  try {
    await trainer.submit(
      world.task({ task_id: 'redirected', callback_url: `http://127.0.0.1:${redirecting.address().port}/` }),
    );
    for (const deadline = performance.now() + 20_000; asked < 3 && performance.now() < deadline; ) await sleep(20);
    if (asked < 3) trainer.wrongs.push('a redirected callback was not tried again');
    if (followed > 0) trainer.wrongs.push('a callback followed a redirect');
  } finally {
    target.close();
    redirecting.close();
    target.closeAllConnections();
    redirecting.closeAllConnections();
    // This suite answers for it itself.
    trainer.tasks.get('redirected').task = {};
  }
}
