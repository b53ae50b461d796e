// Runs the cases of a client's script, as harness.py does.

export const URL = process.env.RADIXRT_URL ?? "http://127.0.0.1:30000";
export const MODEL = process.env.RADIXRT_MODEL ?? "smollm2-135m-instruct";
export const V1 = `${URL}/v1`;

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
