import { BlockList, isIP } from 'node:net';

/** A list of subnets in the form `<address>/<number of bits>`. Node's list of them is made at the first use. */
class Subnets {
  private readonly subnets: readonly string[];
  private list: BlockList | null = null;

  constructor(subnets: readonly string[]) {
    this.subnets = subnets;
  }

  contains(address: string): boolean {
    this.list ??= this.blockList();
    return this.list.check(address, familyOf(address));
  }

  private blockList(): BlockList {
    const list = new BlockList();
    for (const subnet of this.subnets) {
      const [network = '', bits] = subnet.split('/');
      list.addSubnet(network, Number(bits), familyOf(network));
    }
    return list;
  }
}

function familyOf(address: string): 'ipv4' | 'ipv6' {
  return isIP(address) === 6 ? 'ipv6' : 'ipv4';
}

const LOOPBACK = new Subnets(['127.0.0.0/8', '::1/128']);

/**
 * Addresses that neither a trainer nor a sandbox ever has to connect to:
 * - link-local addresses, which most cloud metadata services use;
 * - other addresses of metadata services (Alibaba, Oracle, Azure, AWS, Google, Scaleway);
 * - multicast, and the unspecified range 0.0.0.0/8;
 * - the IPv6 ranges of Teredo and of local NAT64 prefixes, because floe cannot extract the IPv4 addresses that these embed.
 */
const FORBIDDEN = new Subnets([
  '0.0.0.0/8',
  '169.254.0.0/16',
  '224.0.0.0/3',
  '100.100.100.200/32',
  '192.0.0.192/32',
  '168.63.129.16/32',
  '::/128',
  'fe80::/10',
  'ff00::/8',
  'fd00:ec2::/32',
  'fd20:ce::/32',
  'fd00:42::42/128',
  '64:ff9b:1::/48',
  '2001::/32',
]);

/** The first six groups of IPv6 addresses that end in an IPv4 address: compatible, mapped, translated and NAT64 addresses. */
const EMBEDDING_PREFIXES: readonly string[] = ['0:0:0:0:0:0', '0:0:0:0:0:ffff', '0:0:0:0:ffff:0', '64:ff9b:0:0:0:0'];

/** Addresses of networks that are not the Internet: private, shared, benchmark, documentation and unique local addresses. */
const PRIVATE = new Subnets([
  '10.0.0.0/8',
  '100.64.0.0/10',
  '172.16.0.0/12',
  '192.0.0.0/24',
  '192.0.2.0/24',
  '192.168.0.0/16',
  '198.18.0.0/15',
  '198.51.100.0/24',
  '203.0.113.0/24',
  'fc00::/7',
  'fec0::/10',
  '2001:db8::/32',
]);

/**
 * The kind of network that an IP address belongs to. `forbidden` are link-local, metadata, multicast and unspecified addresses. An IPv4
 * address that is embedded in an IPv6 address decides for it.
 */
export type AddressKind = 'forbidden' | 'loopback' | 'private' | 'public';

/** Returns the kind of an IP address. */
export function addressKind(given: string): AddressKind {
  const address = ipv4Within(given) ?? given;
  if (FORBIDDEN.contains(address)) return 'forbidden';
  if (LOOPBACK.contains(address)) return 'loopback';
  return PRIVATE.contains(address) ? 'private' : 'public';
}

/** Whether a listener on this host name can be reached only from this machine. */
export function isLoopbackHost(host: string): boolean {
  return host === 'localhost' || (isIP(host) !== 0 && addressKind(host) === 'loopback');
}

/** Returns the IPv4 address that is embedded in an IPv6 address (see {@link EMBEDDING_PREFIXES}, and 6to4); `null` when there is none. */
function ipv4Within(address: string): string | null {
  if (isIP(address) !== 6) return null;
  // The URL parser converts every notation of an IPv6 address to hexadecimal groups without dots.
  const [head = '', tail] = new URL(`http://[${address.split('%')[0]}]`).hostname.slice(1, -1).split('::');
  const before = head === '' ? [] : head.split(':');
  const after = tail === undefined || tail === '' ? [] : tail.split(':');
  const groups = [...before, ...Array<string>(8 - before.length - after.length).fill('0'), ...after];
  const prefix = groups.slice(0, 6).join(':');
  if (groups[0] === '2002') return dotted(groups[1], groups[2]);
  const isIsatap = ['0:5efe', '200:5efe'].includes(groups.slice(4, 6).join(':'));
  const embedding = isIsatap || EMBEDDING_PREFIXES.includes(prefix);
  // `::` and `::1` have the form of an IPv6 address with an embedded IPv4 address, but contain none.
  return embedding && !(prefix === '0:0:0:0:0:0' && groups[6] === '0') ? dotted(groups[6], groups[7]) : null;
}

function dotted(high = '0', low = '0'): string {
  const [a, b] = [Number.parseInt(high, 16), Number.parseInt(low, 16)];
  return [a >> 8, a & 255, b >> 8, b & 255].join('.');
}
