// Records the JSON schemas of zod 4's builders and checks in zod_schemas.json: npm install zod@4, then node zod_schemas.mjs
import fs from "node:fs";
import * as z from "zod";

const scalars = {
  string: z.string(), min: z.string().min(2), max: z.string().max(5), length: z.string().length(3),
  regex: z.string().regex(/^[A-Z]{2}-\d{3}$/), word: z.string().regex(/\bcat\b/), behind: z.string().regex(/(?<=a)b/),
  ahead: z.string().regex(/^(?=.*\d).{4,8}$/), script: z.string().regex(/^\p{Script=Greek}+$/u),
  negated: z.string().regex(/^\W{3}$/), space: z.string().regex(/^\S+ \S+$/), back: z.string().regex(/^(a|b)\1$/),
  startsWith: z.string().startsWith("ab"), endsWith: z.string().endsWith("yz"), includes: z.string().includes("mid"),
  lowercase: z.string().lowercase(), uppercase: z.string().uppercase(), trim: z.string().trim(),
  email: z.email(), html5Email: z.email({ pattern: z.regexes.html5Email }), unicodeEmail: z.email({ pattern: z.regexes.unicodeEmail }),
  rfc5322Email: z.email({ pattern: z.regexes.rfc5322Email }), uuid: z.uuid(), uuid4: z.uuidv4(), uuid6: z.uuidv6(), uuid7: z.uuidv7(), guid: z.guid(),
  url: z.url(), httpUrl: z.httpUrl(), hostname: z.hostname(), emoji: z.emoji(), base64: z.base64(), base64url: z.base64url(), hex: z.hex(),
  jwt: z.jwt(), nanoid: z.nanoid(), cuid: z.cuid(), cuid2: z.cuid2(), ulid: z.ulid(), xid: z.xid(), ksuid: z.ksuid(),
  ipv4: z.ipv4(), ipv6: z.ipv6(), cidrv4: z.cidrv4(), cidrv6: z.cidrv6(), e164: z.e164(), md5: z.hash("md5"), sha256: z.hash("sha256"),
  date: z.iso.date(), time: z.iso.time(), timeP: z.iso.time({ precision: 3 }), datetime: z.iso.datetime(),
  offset: z.iso.datetime({ offset: true }), local: z.iso.datetime({ local: true }), duration: z.iso.duration(),
  number: z.number(), int: z.int(), int32: z.int32(), uint32: z.uint32(), float32: z.float32(), float64: z.float64(),
  gt: z.number().gt(5), gte: z.number().gte(5), lt: z.number().lt(5), between: z.number().min(0).max(1), positive: z.number().positive(),
  negative: z.number().negative(), step: z.number().multipleOf(0.01), five: z.int().multipleOf(5), kilo: z.int().multipleOf(1024),
  day: z.int().multipleOf(86400), prime: z.int().multipleOf(997), boolean: z.boolean(), null: z.null(), any: z.any(), unknown: z.unknown(),
  literal: z.literal("a"), literals: z.literal(["a", 1, true, null]), enum: z.enum(["x", "y"]), native: z.enum({ A: 1, B: "b" }),
  template: z.templateLiteral(["v", z.number()]), templateEnum: z.templateLiteral([z.enum(["px", "em"]), "-", z.string()]), stringbool: z.string(),
};
const wraps = {
  plain: (s) => s, optional: (s) => z.object({ a: s.optional() }), nullable: (s) => s.nullable(), array: (s) => z.array(s),
  bounded: (s) => z.array(s).min(1).max(3), tuple: (s) => z.tuple([s, z.string()]), rest: (s) => z.tuple([s], z.int()),
  record: (s) => z.record(z.string(), s), union: (s) => z.union([s, z.boolean()]), object: (s) => z.object({ a: s, b: z.string() }),
  strict: (s) => z.strictObject({ a: s }), loose: (s) => z.looseObject({ a: s }), catchall: (s) => z.object({ a: s }).catchall(z.int()),
  partial: (s) => z.object({ a: s, b: z.int() }).partial(), defaulted: (s) => z.object({ a: s.nullish() }),
  described: (s) => s.describe("words").meta({ examples: [1], "x-order": 1 }), readonly: (s) => s.readonly(),
};
const others = {
  enumRecord: z.record(z.enum(["a", "b"]), z.int()), partialRecord: z.partialRecord(z.enum(["a", "b"]), z.int()),
  regexRecord: z.record(z.string().regex(/^x-/), z.int()), intersection: z.intersection(z.object({ a: z.int() }), z.object({ b: z.int() })),
  and: z.object({ a: z.int() }).and(z.object({ b: z.string() })), extend: z.object({ a: z.int() }).extend({ b: z.int() }),
  discriminated: z.discriminatedUnion("t", [z.object({ t: z.literal("a"), x: z.int() }), z.object({ t: z.literal("b"), y: z.string() })]),
  json: z.json(), never: z.object({ a: z.never().optional() }), nonempty: z.array(z.int()).nonempty(), lazy: z.object({ a: z.lazy(() => z.int()) }),
  unique: z.array(z.string()).meta({ uniqueItems: true }), uniqueEnum: z.array(z.enum(["a", "b", "c"])).meta({ uniqueItems: true }),
  minProperties: z.record(z.string(), z.int()).meta({ minProperties: 2 }),
  tree: z.object({ v: z.int(), get next() { return others_tree().optional(); } }), pick: z.object({ a: z.int(), b: z.int() }).pick({ a: true }),
};
function others_tree() { return z.object({ v: z.int() }); }
const found = {};
const record = (name, schema) => { try { found[name] = z.toJSONSchema(schema, { io: "input" }); } catch (error) { console.error(name, error.message); } };
for (const [name, schema] of Object.entries(scalars)) for (const wrap of ["plain", "object"]) record(`${name}.${wrap}`, wraps[wrap](schema));
for (const [name, wrap] of Object.entries(wraps)) for (const scalar of ["string", "min", "int", "between", "enum", "email", "boolean"]) record(`${scalar}.${name}`, wrap(scalars[scalar]));
for (const [name, schema] of Object.entries(others)) record(name, schema);
const lines = Object.entries(found).map(([name, schema]) => `  ${JSON.stringify(name)}: ${JSON.stringify(schema)}`);
fs.writeFileSync(new URL("zod_schemas.json", import.meta.url), `{\n${lines.join(",\n")}\n}\n`);
console.log(lines.length);
