// Runs the cases of a client's script, as harness.py does.

import { crc32, deflateSync } from "node:zlib";

export const URL = process.env.RADIXRT_URL ?? "http://127.0.0.1:30000";
export const MODEL = process.env.RADIXRT_MODEL ?? "smollm2-135m-instruct";
export const V1 = `${URL}/v1`;

// A PNG file of an RGB gradient; each seed has other pixels.
export function picture(seed = 0, width = 64, height = 48) {
  const chunk = (kind, data) => {
    const size = Buffer.alloc(4), sum = Buffer.alloc(4), body = Buffer.concat([Buffer.from(kind), data]);
    size.writeUInt32BE(data.length);
    sum.writeUInt32BE(crc32(body));
    return Buffer.concat([size, body, sum]);
  };
  const rows = Buffer.alloc(height * (3 * width + 1));
  for (let y = 0; y < height; y++) for (let x = 0; x < 3 * width; x++) rows[y * (3 * width + 1) + 1 + x] = 4 * (Math.floor(x / 3) + y) + 40 * seed * (x % 3);
  const header = Buffer.from([0, 0, 0, width, 0, 0, 0, height, 8, 2, 0, 0, 0]);
  return Buffer.concat([Buffer.from("\x89PNG\r\n\x1a\n", "latin1"), chunk("IHDR", header), chunk("IDAT", deflateSync(rows, { level: 9 })), chunk("IEND", Buffer.alloc(0))]);
}

export async function main(cases) {
  const wanted = (process.env.RADIXRT_CASES ?? "").split(" ").filter(Boolean);
  for (const [name, run] of Object.entries(cases)) {
    if (wanted.length && !wanted.includes(name)) continue;
    await fetch(`${URL}/record/${name}`);
    let error = null;
    try {
      await run();
    } catch (raised) {
      console.error(raised);
      error = `${raised.name}: ${raised.message}`;
    }
    console.log(JSON.stringify({ case: name, error }));
  }
}
