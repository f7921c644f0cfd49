/*
 * fake_nvml.c - a scripted stand-in for NVIDIA's libnvidia-ml.so.1
 *
 * Lets the real nvidia-ml-py, nvitop, gpustat and any other NVML client run on
 * a machine with no GPU and no driver, with values, errors, delays, Xid events,
 * MIG slices and processes chosen by the test. tests/fake_nvml.py builds it and
 * gives the tests a handle on it.
 * Original code, no NVIDIA source in it; only the public ABI (symbol names,
 * enum numbers, struct layouts) is reproduced.
 *
 * BUILD
 *   gcc -O2 -Wall -Wextra -shared -fPIC -pthread \
 *       -o fake/libnvidia-ml.so.1 fake_nvml.c -lm
 *   (-DFAKE_NVML_OLD drops the newer symbols - TemperatureV, EventReasons,
 *    MemoryInfo_v2, *_v3 process lists, GPM - to imitate an old driver.)
 *
 * USE
 *   In a child process: LD_LIBRARY_PATH=fake, set before the interpreter starts.
 *   In the test process: pynvml.nvmlLib = ctypes.CDLL("<a copy>/libnvidia-ml.so.1")
 *   before nvmlInit. Every copy of the file is a machine of its own: the loader
 *   gives it its own state.
 *
 * ENVIRONMENT
 *   FAKE_NVML_COUNT=8        number of GPUs when the script does not say
 *   FAKE_NVML_SCRIPT=file    the script (below); re-read when it changes
 *   FAKE_NVML_TRACE=file     at exit append "pid function gpu calls" lines ('-'
 *                            for a call that names no GPU), so a test can assert
 *                            how many NVML calls a sample costs and on which GPU
 *
 * CONTROL (for tests in the same process; not part of NVML)
 *   fakeNvmlReload()             read the script now
 *   fakeNvmlTrace(path)          append the trace to that file now and start
 *                                counting again
 *
 * SCRIPT: one "key = value" per line, '#' starts a comment
 *   count = 4                    driver = 570.133.20      cuda = 12080
 *   nvml = 12.570.133.20         t = 12.5    (freeze the clock at 12.5 s)
 *   init_error = 9               nvmlInit fails with that code
 *   epoch = 2                    a changed epoch makes every live handle stale
 *                                (error 1, Uninitialized) until nvmlInit again
 *   gpu.*.util_gpu = sine:50:40:20    gpu.1.temp_gpu = 91
 *   gpu.*.name = NVIDIA H100 80GB HBM3
 *   gpu.0.procs = C:self:4294967296:55;G:1:1048576:1   kind:pid:bytes:sm%
 *   gpu.2.xid = 79@5,31@9        Xid 79 at t=5 s, Xid 31 at t=9 s; the code
 *                                "ecc" is a double bit ECC event
 *   gpu.*.field.230 = 1          any nvmlDeviceGetFieldValues id
 *   gpu.*.field.82 = err:3       that field is Not Supported
 *   gpu.*.gpm.2 = 83.5           any GPM metric id
 *   err.nvmlDeviceGetFanSpeed = 3         that call is Not Supported
 *   err.nvmlDeviceGetTemperature.2 = 15   only on GPU 2
 *   err.*.3 = 15@10-20                    GPU 3 is lost from t=10 s to t=20 s
 *   delay_us.nvmlDeviceGetPcieThroughput = 20000
 *   A number is a constant, "ramp:start:per_second", "sine:mid:amp:period",
 *   or "steps:seconds:v0,v1,v2" (cyclic). K/M/G/Ki/Mi/Gi suffixes work.
 *   Numeric keys and their defaults: the NUM_KEYS table below.
 *   Later lines win, so put gpu.* before gpu.N. The clock t starts at the
 *   first NVML call of the process.
 */
#define _GNU_SOURCE
#include <math.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define API __attribute__((visibility("default")))
#define MAXGPU 64
#define MAXMIG 7
#define MAXPROC 64
#define MAXFN 256
#define MAXRULE 512
#define MAXEXTRA 1024
#define MAXXID 256
#define U unsigned int
#define ULL unsigned long long

enum { OK = 0, UNINIT = 1, INVAL = 2, NOTSUP = 3, NOTFOUND = 6, SMALL = 7,
       TIMEOUT = 10, VERSION_MISMATCH = 25 };

/* ------------------------------------------------------------ numeric keys */
#define NUM_KEYS(X)                                                           \
  X(util_gpu, "sine:60:35:30")   X(util_mem, "sine:30:20:30")                 \
  X(mem_total, "80Gi")           X(mem_used, "40Gi")                          \
  X(mem_reserved, "512Mi")       X(bar1_total, "128Gi")                       \
  X(bar1_used, "4Mi")            X(temp_gpu, "sine:60:10:60")                 \
  X(temp_mem, "sine:70:10:60")   X(temp_shutdown, "92")                       \
  X(temp_slowdown, "89")         X(temp_memmax, "95")                         \
  X(temp_max, "87")              X(temp_margin, "27")                         \
  X(power_mw, "sine:450000:150000:30")                                        \
  X(power_limit_mw, "700000")    X(power_default_mw, "700000")                \
  X(power_min_mw, "200000")      X(power_max_mw, "700000")                    \
  X(energy_mj, "ramp:1000000:450000")                                         \
  X(clk_graphics, "1755") X(clk_sm, "1755") X(clk_mem, "2619")                \
  X(clk_video, "1545")    X(clkmax_graphics, "1980") X(clkmax_sm, "1980")     \
  X(clkmax_mem, "2619")   X(clkmax_video, "1545")                             \
  X(event_reasons, "4")   X(event_supported, "511")                           \
  X(viol_power_ns, "ramp:0:1000000") X(viol_thermal_ns, "0")                  \
  X(fan_pct, "45")        X(num_fans, "2")       X(fan_rpm, "1600")           \
  X(pcie_tx_kbps, "sine:800000:400000:20")                                    \
  X(pcie_rx_kbps, "sine:500000:300000:20")                                    \
  X(pcie_gen, "5") X(pcie_width, "16") X(pcie_gen_max, "5")                   \
  X(pcie_width_max, "16") X(pcie_replay, "0") X(pcie_speed_mbps, "32000")     \
  X(pcie_tx_bytes, "ramp:0:800000000") X(pcie_rx_bytes, "ramp:0:500000000")   \
  X(ecc_mode, "1") X(ecc_corr_vol, "0") X(ecc_unc_vol, "0")                   \
  X(ecc_corr_agg, "3") X(ecc_unc_agg, "0")                                    \
  X(remap_corr, "0") X(remap_unc, "0") X(remap_pending, "0")                  \
  X(remap_failure, "0") X(retired_sbe, "0") X(retired_dbe, "0")               \
  X(retired_pending, "0")                                                     \
  X(enc_util, "0") X(dec_util, "0") X(jpg_util, "0") X(ofa_util, "0")         \
  X(pstate, "0") X(persistence, "1") X(compute_mode, "0")                     \
  X(display_active, "0") X(display_mode, "0")                                 \
  X(cc_major, "9") X(cc_minor, "0") X(arch, "9") X(brand, "14")               \
  X(cores, "16896") X(bus_width, "5120") X(numa, "0")                         \
  X(nvlink_count, "18") X(nvlink_version, "4") X(nvlink_speed_mbps, "26562")  \
  X(nvlink_tx_kib, "ramp:0:2000000") X(nvlink_rx_kib, "ramp:0:2000000")       \
  X(nvlink_replay, "0") X(nvlink_recovery, "0") X(nvlink_crc, "0")            \
  X(mig, "0") X(mig_count, "0") X(gpm, "1") X(recovery_action, "0")           \
  X(samples_hz, "6")
enum {
#define X(n, d) K_##n,
  NUM_KEYS(X)
#undef X
  K_COUNT
};
static const char *const key_name[] = {
#define X(n, d) #n,
  NUM_KEYS(X)
#undef X
};
static const char *const key_default[] = {
#define X(n, d) d,
  NUM_KEYS(X)
#undef X
};

/* --------------------------------------------------------------- the model */
typedef struct { int kind; double a, b, c; double *steps; int nsteps; } Expr;
typedef struct { char kind; U pid; ULL mem; U sm; } Proc;
typedef struct { ULL code, type; double at; int taken; } Xid;
typedef struct Dev {
  int idx, parent, mig_slot;            /* parent/mig_slot >= 0: a MIG device */
  ULL epoch;
  Expr num[K_COUNT];
  char name[96], uuid[96], serial[32], pci[32], vbios[32];
  Proc proc[MAXPROC]; int nproc;
  Xid xid[MAXXID]; int nxid;
} Dev;
typedef struct { int gpu, kind; U id; int err; Expr e; } Extra; /* kind 0 field,1 gpm */
typedef struct { char fn[80]; int gpu; int code; long delay_us;
                 double from, to; } Rule;

static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER;
static Dev gpu[MAXGPU], migdev[MAXGPU * MAXMIG];
static int ngpu = 8, inited, init_error, loaded;
static int cuda_version = 12080;
static char driver[80] = "570.133.20", nvmlver[80] = "12.570.133.20";
static ULL epoch = 1, init_epoch;
static double frozen = -1, t0 = -1;
static Extra extra[MAXEXTRA]; static int nextra;
static Rule rule[MAXRULE]; static int nrule;
static struct { const char *name; ULL calls[MAXGPU + 1]; } fn_tab[MAXFN]; static int nfn;
static struct timespec seen_mtime; static off_t seen_size = -1;
static double last_check = -1;

static double mono(void) {
  struct timespec ts; clock_gettime(CLOCK_MONOTONIC, &ts);
  return ts.tv_sec + ts.tv_nsec * 1e-9;
}
static ULL wall_us(void) {
  struct timespec ts; clock_gettime(CLOCK_REALTIME, &ts);
  return (ULL)ts.tv_sec * 1000000ULL + (ULL)ts.tv_nsec / 1000ULL;
}
static double now_t(void) {
  if (frozen >= 0) return frozen;
  if (t0 < 0) t0 = mono();
  return mono() - t0;
}

static double num_suffix(const char *s) {
  char *end; double v = strtod(s, &end);
  static const char order[] = "KMGT";
  const char *p = *end ? strchr(order, *end) : NULL;
  if (p && *p) v *= pow(end[1] == 'i' ? 1024.0 : 1000.0, (double)(p - order + 1));
  return v;
}
static Expr parse_expr(const char *s) {
  Expr e; memset(&e, 0, sizeof e);
  char buf[512]; snprintf(buf, sizeof buf, "%s", s);
  char *save = NULL, *w = strtok_r(buf, ":", &save);
  if (!w) return e;
  int kind = !strcmp(w, "ramp") ? 1 : !strcmp(w, "sine") ? 2
           : !strcmp(w, "steps") ? 3 : 0;
  if (!kind) { e.a = num_suffix(w); return e; }
  char *x = strtok_r(NULL, ":", &save), *y = strtok_r(NULL, ":", &save),
       *z = strtok_r(NULL, ":", &save);
  e.kind = kind;
  e.a = x ? num_suffix(x) : 0;
  if (kind == 3) {
    char *sv = NULL;
    for (char *v = y ? strtok_r(y, ",", &sv) : NULL; v; v = strtok_r(NULL, ",", &sv)) {
      double *grown = realloc(e.steps, sizeof(double) * (size_t)(e.nsteps + 1));
      if (!grown) break;
      e.steps = grown; e.steps[e.nsteps++] = num_suffix(v);
    }
  } else { e.b = y ? num_suffix(y) : 0; e.c = z ? num_suffix(z) : 60; }
  return e;
}
static double eval_at(const Expr *e, double t) {
  switch (e->kind) {
    case 1: return e->a + e->b * t;
    case 2: return e->a + e->b * sin(2 * M_PI * t / (e->c > 0 ? e->c : 1));
    case 3: return e->nsteps ? e->steps[(long)(t / (e->a > 0 ? e->a : 1)) % e->nsteps] : 0;
    default: return e->a;
  }
}
static double val(const Dev *d, int k) { return eval_at(&d->num[k], now_t()); }
static U uval(const Dev *d, int k) { double v = val(d, k); return v < 0 ? 0 : (U)(v + 0.5); }
static ULL lval(const Dev *d, int k) { double v = val(d, k); return v < 0 ? 0 : (ULL)v; }

/* -------------------------------------------------------------- the script */
static void defaults(Dev *d, int i) {
  memset(d, 0, sizeof *d);
  d->idx = i; d->parent = -1; d->mig_slot = -1; d->epoch = epoch;
  for (int k = 0; k < K_COUNT; k++) d->num[k] = parse_expr(key_default[k]);
  snprintf(d->name, sizeof d->name, "NVIDIA H100 80GB HBM3");
  snprintf(d->uuid, sizeof d->uuid, "GPU-fa4e0000-0000-4000-8000-%012x", i);
  snprintf(d->serial, sizeof d->serial, "1650523%06d", i);
  snprintf(d->pci, sizeof d->pci, "00000000:%02X:00.0", 0x10 + i);
  snprintf(d->vbios, sizeof d->vbios, "96.00.74.00.01");
}
static void set_procs(Dev *d, char *v) {
  d->nproc = 0;
  char *save = NULL;
  for (char *p = strtok_r(v, ";", &save); p && d->nproc < MAXPROC; p = strtok_r(NULL, ";", &save)) {
    char kind = 'C', pid[32] = "0", mem[32] = "0", sm[32] = "0";
    sscanf(p, " %c:%31[^:]:%31[^:]:%31s", &kind, pid, mem, sm);
    Proc *q = &d->proc[d->nproc++];
    q->kind = kind;
    q->pid = !strcmp(pid, "self") ? (U)getpid() : !strcmp(pid, "parent") ? (U)getppid() : (U)atoi(pid);
    q->mem = !strcmp(mem, "na") ? ~0ULL : (ULL)num_suffix(mem);
    q->sm = (U)atoi(sm);
  }
}
static void set_xids(Dev *d, char *v) {
  int old = d->nxid; Xid keep[MAXXID]; memcpy(keep, d->xid, sizeof keep);
  d->nxid = 0;
  char *save = NULL;
  for (char *p = strtok_r(v, ",", &save); p && d->nxid < MAXXID; p = strtok_r(NULL, ",", &save)) {
    Xid *x = &d->xid[d->nxid++];
    char *at = strchr(p, '@');
    x->code = strtoull(p, NULL, 10); x->at = at ? atof(at + 1) : 0; x->taken = 0;
    x->type = !strncmp(p, "ecc", 3) ? 2 : 8;
    int at_n = d->nxid - 1;                             /* survive a reload */
    if (at_n < old && keep[at_n].code == x->code && keep[at_n].at == x->at) x->taken = keep[at_n].taken;
  }
}
static void set_gpu_key(int i, const char *key, const char *value) {
  Dev *d = &gpu[i];
  char v[2048]; snprintf(v, sizeof v, "%s", value);
  if (!strcmp(key, "name")) snprintf(d->name, sizeof d->name, "%.95s", v);
  else if (!strcmp(key, "uuid")) snprintf(d->uuid, sizeof d->uuid, "%.95s", v);
  else if (!strcmp(key, "serial")) snprintf(d->serial, sizeof d->serial, "%.31s", v);
  else if (!strcmp(key, "pci")) snprintf(d->pci, sizeof d->pci, "%.31s", v);
  else if (!strcmp(key, "vbios")) snprintf(d->vbios, sizeof d->vbios, "%.31s", v);
  else if (!strcmp(key, "procs")) set_procs(d, v);
  else if (!strcmp(key, "xid")) set_xids(d, v);
  else if (!strncmp(key, "field.", 6) || !strncmp(key, "gpm.", 4)) {
    if (nextra < MAXEXTRA) {
      Extra *x = &extra[nextra++];
      x->gpu = i; x->kind = key[0] == 'g';
      x->id = (U)atoi(strchr(key, '.') + 1); x->e = parse_expr(v);
      x->err = !strncmp(v, "err:", 4) ? atoi(v + 4) : 0;
    }
  } else
    for (int k = 0; k < K_COUNT; k++)
      if (!strcmp(key, key_name[k])) { d->num[k] = parse_expr(v); return; }
}
static void add_rule(const char *spec, const char *value, int is_delay) {
  if (nrule >= MAXRULE) return;
  Rule *r = &rule[nrule++];
  memset(r, 0, sizeof *r);
  r->gpu = -1; r->from = 0; r->to = 1e18;
  snprintf(r->fn, sizeof r->fn, "%.79s", spec);
  char *dot = strchr(r->fn, '.');
  if (dot) { *dot = 0; r->gpu = atoi(dot + 1); }
  const char *at = strchr(value, '@');
  if (at) {
    r->from = atof(at + 1);
    const char *dash = strchr(at + 1, '-');
    if (dash) r->to = atof(dash + 1);
  }
  if (is_delay) r->delay_us = atol(value); else r->code = atoi(value);
}
static char *trim(char *s) {
  while (*s == ' ' || *s == '\t') s++;
  size_t n = strlen(s);
  while (n && strchr(" \t\r\n", s[n - 1])) s[--n] = 0;
  return s;
}
static void load_script(void) {
  const char *path = getenv("FAKE_NVML_SCRIPT"), *cnt = getenv("FAKE_NVML_COUNT");
  struct stat st;
  int have = path && *path && stat(path, &st) == 0;
  if (loaded && !have) return;
  if (loaded && st.st_size == seen_size && st.st_mtim.tv_sec == seen_mtime.tv_sec &&
      st.st_mtim.tv_nsec == seen_mtime.tv_nsec) return;
  if (have) { seen_mtime = st.st_mtim; seen_size = st.st_size; }
  int first = !loaded;
  loaded = 1;
  static Xid keep[MAXGPU][MAXXID]; int kept[MAXGPU];
  for (int i = 0; i < MAXGPU; i++) { kept[i] = gpu[i].nxid; memcpy(keep[i], gpu[i].xid, sizeof keep[i]); }
  for (int i = 0; i < MAXGPU; i++) {
    defaults(&gpu[i], i);
    if (!first) { gpu[i].nxid = kept[i]; memcpy(gpu[i].xid, keep[i], sizeof keep[i]); }
  }
  ngpu = cnt ? atoi(cnt) : 8; nextra = nrule = 0; frozen = -1; init_error = 0;
  FILE *f = have ? fopen(path, "r") : NULL;
  char line[2048];
  while (f && fgets(line, sizeof line, f)) {
    char *hash = strchr(line, '#'); if (hash) *hash = 0;
    char *eq = strchr(line, '='); if (!eq) continue;
    *eq = 0;
    char *k = trim(line), *v = trim(eq + 1);
    if (!strcmp(k, "count")) ngpu = atoi(v);
    else if (!strcmp(k, "driver")) snprintf(driver, sizeof driver, "%.79s", v);
    else if (!strcmp(k, "nvml")) snprintf(nvmlver, sizeof nvmlver, "%.79s", v);
    else if (!strcmp(k, "cuda")) cuda_version = atoi(v);
    else if (!strcmp(k, "t")) frozen = atof(v);
    else if (!strcmp(k, "init_error")) init_error = atoi(v);
    else if (!strcmp(k, "epoch")) epoch = strtoull(v, NULL, 10);
    else if (!strncmp(k, "err.", 4)) add_rule(k + 4, v, 0);
    else if (!strncmp(k, "delay_us.", 9)) add_rule(k + 9, v, 1);
    else if (!strncmp(k, "gpu.", 4)) {
      char *rest = strchr(k + 4, '.'); if (!rest) continue;
      *rest++ = 0;
      if (k[4] == '*') for (int i = 0; i < MAXGPU; i++) set_gpu_key(i, rest, v);
      else if (atoi(k + 4) >= 0 && atoi(k + 4) < MAXGPU) set_gpu_key(atoi(k + 4), rest, v);
    }
  }
  if (f) fclose(f);
  if (ngpu < 0) ngpu = 0;
  if (ngpu > MAXGPU) ngpu = MAXGPU;
  for (int i = 0; i < MAXGPU; i++)
    for (int m = 0; m < MAXMIG; m++) {
      Dev *g = &migdev[i * MAXMIG + m];
      memcpy(g, &gpu[i], sizeof *g);
      g->parent = i; g->mig_slot = m; g->nproc = 0; g->nxid = 0;
      snprintf(g->uuid, sizeof g->uuid, "MIG-fa4e0000-0000-5000-%04x-%012x", m, i);
      snprintf(g->name, sizeof g->name, "%.60s MIG 1g.10gb", gpu[i].name);
      g->num[K_mem_total].a = gpu[i].num[K_mem_total].a / 8;
      g->num[K_mem_used].a = gpu[i].num[K_mem_used].a / 8;
    }
}

static void dump_trace(const char *path) {
  FILE *f = path && *path ? fopen(path, "a") : NULL;
  if (!f) return;
  for (int i = 0; i < nfn; i++)
    for (int g = 0; g <= MAXGPU; g++) {
      if (!fn_tab[i].calls[g]) continue;
      if (g == MAXGPU) fprintf(f, "%d %s - %llu\n", getpid(), fn_tab[i].name, fn_tab[i].calls[g]);
      else fprintf(f, "%d %s %d %llu\n", getpid(), fn_tab[i].name, g, fn_tab[i].calls[g]);
      fn_tab[i].calls[g] = 0;
    }
  fclose(f);
}
API void fakeNvmlReload(void) { pthread_mutex_lock(&mu); load_script(); pthread_mutex_unlock(&mu); }
API void fakeNvmlTrace(const char *path) { pthread_mutex_lock(&mu); dump_trace(path); pthread_mutex_unlock(&mu); }
__attribute__((destructor)) static void at_exit_trace(void) { dump_trace(getenv("FAKE_NVML_TRACE")); }

/* A device handle is a pointer into one of our arrays; anything else is bad. */
static Dev *dev_of(void *h) {
  Dev *d = h;
  if (d >= gpu && d < gpu + MAXGPU && d->idx < ngpu) return d;
  if (d >= migdev && d < migdev + MAXGPU * MAXMIG && d->parent < ngpu &&
      d->mig_slot < (int)uval(&gpu[d->parent], K_mig_count)) return d;    /* not destroyed */
  return NULL;
}
static int applies(const Rule *r, const char *fn, int who, const Dev *d, double t) {
  if (r->gpu >= 0 && r->gpu != who) return 0;
  if (strcmp(r->fn, "*") && strcmp(r->fn, fn)) return 0;
  if (!strcmp(r->fn, "*") && r->gpu < 0 && !d) return 0;
  return t >= r->from && t < r->to;
}
static void reload_now_and_then(void) {
  double m = mono();
  if (last_check < 0 || m - last_check > 0.02) { last_check = m; load_script(); }
}
/* Whether the script still has the delay: one of minutes lasts until a test ends it. */
static int still_delayed(const char *fn, int who, const Dev *d) {
  pthread_mutex_lock(&mu);
  reload_now_and_then();
  double t = now_t(); int found = 0;
  for (int i = 0; i < nrule; i++) found |= rule[i].delay_us > 0 && applies(&rule[i], fn, who, d, t);
  pthread_mutex_unlock(&mu);
  return found;
}
#define SLICE_US 10000
/* Common entry: count, reload, state check, scripted delay and error. */
static int enter(int *id, const char *fn, const Dev *d, int need_init) {
  pthread_mutex_lock(&mu);
  if (*id < 0 && nfn < MAXFN) { fn_tab[nfn].name = fn; *id = nfn++; }
  reload_now_and_then();
  double t = now_t();
  int rc = OK; long delay = 0;
  if (need_init && (!inited || init_epoch != epoch)) rc = UNINIT;
  int who = d ? (d->parent >= 0 ? d->parent : d->idx) : -1;
  if (*id >= 0) fn_tab[*id].calls[who >= 0 ? who : MAXGPU]++;
  for (int i = 0; i < nrule; i++) {
    const Rule *r = &rule[i];
    if (!applies(r, fn, who, d, t)) continue;
    if (r->delay_us) delay = r->delay_us; else if (rc == OK) rc = r->code;
  }
  pthread_mutex_unlock(&mu);
  for (; delay > 0 && still_delayed(fn, who, d); delay -= SLICE_US)
    usleep((useconds_t)(delay < SLICE_US ? delay : SLICE_US));
  return rc;
}
#define SYS(fn) static int id_ = -1; int rc_ = enter(&id_, #fn, NULL, 1); if (rc_) return rc_;
#define DEV(fn) static int id_ = -1; Dev *d = dev_of(h);                      \
  int rc_ = enter(&id_, #fn, d, 1); if (rc_) return rc_; if (!d) return INVAL;
#define NEED(p) if (!(p)) return INVAL
static int put_str(char *out, U n, const char *s) {
  if (!out) return INVAL;
  if (strlen(s) + 1 > n) return SMALL;
  memcpy(out, s, strlen(s) + 1); return OK;
}
#define STR(fn, expr) API int fn(void *h, char *out, U n) { DEV(fn) return put_str(out, n, expr); }
#define UINT(fn, key) API int fn(void *h, U *out) { DEV(fn) NEED(out); *out = uval(d, K_##key); return OK; }
#define U64(fn, key) API int fn(void *h, ULL *out) { DEV(fn) NEED(out); *out = lval(d, K_##key); return OK; }

/* -------------------------------------------------------- init and system */
static int do_init(int *id, const char *fn) {
  int rc = enter(id, fn, NULL, 0);
  if (rc) return rc;
  pthread_mutex_lock(&mu);
  load_script();
  rc = init_error;
  if (!rc) { inited++; init_epoch = epoch; }
  pthread_mutex_unlock(&mu);
  return rc;
}
API int nvmlInit(void) { static int id = -1; return do_init(&id, "nvmlInit"); }
API int nvmlInit_v2(void) { static int id = -1; return do_init(&id, "nvmlInit_v2"); }
API int nvmlInitWithFlags(U flags) { (void)flags; static int id = -1; return do_init(&id, "nvmlInitWithFlags"); }
API int nvmlShutdown(void) {
  SYS(nvmlShutdown)
  if (inited > 0) inited--;
  return OK;
}
API const char *nvmlErrorString(int code) {
  switch (code) {
    case 0: return "Success"; case 1: return "Uninitialized";
    case 2: return "Invalid Argument"; case 3: return "Not Supported";
    case 4: return "Insufficient Permissions"; case 6: return "Not Found";
    case 7: return "Insufficient Size"; case 9: return "Driver Not Loaded";
    case 10: return "Timeout"; case 13: return "Function Not Found";
    case 15: return "GPU is lost"; case 16: return "GPU requires reset";
    case 18: return "Driver/library version mismatch";
    case 25: return "Argument version mismatch";
    default: return "Unknown Error";
  }
}
API int nvmlSystemGetDriverVersion(char *out, U n) { SYS(nvmlSystemGetDriverVersion) return put_str(out, n, driver); }
API int nvmlSystemGetNVMLVersion(char *out, U n) { SYS(nvmlSystemGetNVMLVersion) return put_str(out, n, nvmlver); }
API int nvmlSystemGetCudaDriverVersion(int *v) { SYS(nvmlSystemGetCudaDriverVersion) NEED(v); *v = cuda_version; return OK; }
API int nvmlSystemGetCudaDriverVersion_v2(int *v) { SYS(nvmlSystemGetCudaDriverVersion_v2) NEED(v); *v = cuda_version; return OK; }
API int nvmlSystemGetProcessName(U pid, char *out, U n) {
  SYS(nvmlSystemGetProcessName)
  char path[64], buf[256] = "";
  snprintf(path, sizeof path, "/proc/%u/comm", pid);
  FILE *f = fopen(path, "r");
  if (!f) return NOTFOUND;
  if (fgets(buf, sizeof buf, f)) buf[strcspn(buf, "\n")] = 0;
  fclose(f);
  return put_str(out, n, buf);
}

/* ------------------------------------------------------ finding a device */
API int nvmlDeviceGetCount_v2(U *n) { SYS(nvmlDeviceGetCount_v2) NEED(n); *n = (U)ngpu; return OK; }
API int nvmlDeviceGetCount(U *n) { SYS(nvmlDeviceGetCount) NEED(n); *n = (U)ngpu; return OK; }
API int nvmlDeviceGetHandleByIndex_v2(U i, void **h) {
  static int id = -1;
  int rc = enter(&id, "nvmlDeviceGetHandleByIndex_v2", i < (U)ngpu ? &gpu[i] : NULL, 1);
  if (rc) return rc;
  if (!h || i >= (U)ngpu) return INVAL;
  *h = &gpu[i]; return OK;
}
/* Unversioned old names, which some C programs (btop) still look up. */
API int nvmlDeviceGetHandleByIndex(U i, void **h) { return nvmlDeviceGetHandleByIndex_v2(i, h); }
static int find_dev(const char *want, size_t off, void **h) {
  for (int i = 0; i < ngpu; i++)
    if (!strcasecmp((char *)&gpu[i] + off, want)) { *h = &gpu[i]; return OK; }
  if (off == offsetof(Dev, uuid))
    for (int i = 0; i < ngpu; i++)
      for (U m = 0; m < uval(&gpu[i], K_mig_count) && m < MAXMIG; m++)
        if (!strcasecmp(migdev[i * MAXMIG + m].uuid, want)) { *h = &migdev[i * MAXMIG + m]; return OK; }
  return NOTFOUND;
}
static int give_dev(int *id, const char *fn, int found, void *dev, void **h) {
  int rc = enter(id, fn, found == OK ? dev : NULL, 1);
  if (rc) return rc;
  if (found == OK) *h = dev;
  return found;
}
#define FIND(fn, key) API int fn(const char *s, void **h) {                    \
  static int id = -1; void *dev = NULL; NEED(s && h);                          \
  return give_dev(&id, #fn, find_dev(s, offsetof(Dev, key), &dev), dev, h); }
FIND(nvmlDeviceGetHandleByUUID, uuid)
FIND(nvmlDeviceGetHandleBySerial, serial)
API int nvmlDeviceGetHandleByPciBusId_v2(const char *s, void **h) {
  static int id = -1; void *dev = NULL; int found = NOTFOUND; NEED(s && h);
  const char *short_id = strlen(s) == 12 ? s : NULL;      /* 0000:10:00.0 */
  for (int i = 0; i < ngpu && !dev; i++)
    if (!strcasecmp(gpu[i].pci, s) || (short_id && !strcasecmp(gpu[i].pci + 4, short_id))) { dev = &gpu[i]; found = OK; }
  return give_dev(&id, "nvmlDeviceGetHandleByPciBusId_v2", found, dev, h);
}
API int nvmlDeviceGetIndex(void *h, U *out) { DEV(nvmlDeviceGetIndex) NEED(out); *out = (U)(d->parent >= 0 ? d->mig_slot : d->idx); return OK; }
API int nvmlDeviceGetMinorNumber(void *h, U *out) { DEV(nvmlDeviceGetMinorNumber) NEED(out); *out = (U)d->idx; return OK; }
STR(nvmlDeviceGetName, d->name)
STR(nvmlDeviceGetUUID, d->uuid)
STR(nvmlDeviceGetSerial, d->serial)
STR(nvmlDeviceGetVbiosVersion, d->vbios)
typedef struct { char legacy[16]; U domain, bus, device, dev_id, sub_id; char bus_id[32]; } PciInfo;
API int nvmlDeviceGetPciInfo_v3(void *h, PciInfo *p) {
  DEV(nvmlDeviceGetPciInfo_v3) NEED(p);
  memset(p, 0, sizeof *p);
  snprintf(p->bus_id, sizeof p->bus_id, "%s", d->pci);
  snprintf(p->legacy, sizeof p->legacy, "%.15s", strlen(d->pci) > 12 ? d->pci + 4 : d->pci);
  sscanf(d->pci, "%x:%x:%x", &p->domain, &p->bus, &p->device);
  p->dev_id = 0x233010DE; p->sub_id = 0x16C110DE; return OK;
}
API int nvmlDeviceGetCudaComputeCapability(void *h, int *a, int *b) {
  DEV(nvmlDeviceGetCudaComputeCapability) NEED(a && b);
  *a = (int)uval(d, K_cc_major); *b = (int)uval(d, K_cc_minor); return OK;
}
UINT(nvmlDeviceGetArchitecture, arch)
UINT(nvmlDeviceGetBrand, brand)
UINT(nvmlDeviceGetNumGpuCores, cores)
UINT(nvmlDeviceGetMemoryBusWidth, bus_width)
UINT(nvmlDeviceGetNumaNodeId, numa)
UINT(nvmlDeviceGetPersistenceMode, persistence)
UINT(nvmlDeviceGetComputeMode, compute_mode)
UINT(nvmlDeviceGetDisplayActive, display_active)
UINT(nvmlDeviceGetDisplayMode, display_mode)
UINT(nvmlDeviceGetPerformanceState, pstate)
UINT(nvmlDeviceGetPowerState, pstate)
/* Windows-only queries: real NVML on Linux exports them and says Not Supported. */
API int nvmlDeviceGetDriverModel(void *h, U *cur, U *pend) { DEV(nvmlDeviceGetDriverModel) (void)cur; (void)pend; return NOTSUP; }
API int nvmlDeviceGetDriverModel_v2(void *h, U *cur, U *pend) { DEV(nvmlDeviceGetDriverModel_v2) (void)cur; (void)pend; return NOTSUP; }

/* ---------------------------------------------------- load, memory, heat */
API int nvmlDeviceGetUtilizationRates(void *h, U out[2]) {
  DEV(nvmlDeviceGetUtilizationRates) NEED(out);
  if (d->parent >= 0) return NOTSUP;                 /* as on real MIG */
  out[0] = uval(d, K_util_gpu); out[1] = uval(d, K_util_mem); return OK;
}
API int nvmlDeviceGetMemoryInfo(void *h, ULL out[3]) {   /* total, free, used */
  DEV(nvmlDeviceGetMemoryInfo) NEED(out);
  ULL total = lval(d, K_mem_total), used = lval(d, K_mem_used) + lval(d, K_mem_reserved);
  out[0] = total; out[1] = total > used ? total - used : 0; out[2] = used; return OK;
}
API int nvmlDeviceGetBAR1MemoryInfo(void *h, ULL out[3]) {
  DEV(nvmlDeviceGetBAR1MemoryInfo) NEED(out);
  out[0] = lval(d, K_bar1_total); out[2] = lval(d, K_bar1_used); out[1] = out[0] - out[2]; return OK;
}
#ifndef FAKE_NVML_OLD
typedef struct { U version; ULL total, reserved, free, used; } MemV2;
API int nvmlDeviceGetMemoryInfo_v2(void *h, MemV2 *m) {
  DEV(nvmlDeviceGetMemoryInfo_v2) NEED(m);
  if (m->version != (2u << 24 | sizeof(MemV2))) return VERSION_MISMATCH;
  m->total = lval(d, K_mem_total); m->reserved = lval(d, K_mem_reserved);
  m->used = lval(d, K_mem_used); m->free = m->total - m->reserved - m->used; return OK;
}
typedef struct { U version; int sensor, celsius; } TempV;
API int nvmlDeviceGetTemperatureV(void *h, TempV *t) {
  DEV(nvmlDeviceGetTemperatureV) NEED(t);
  if (t->version != (1u << 24 | sizeof(TempV))) return VERSION_MISMATCH;
  if (t->sensor) return INVAL;
  t->celsius = (int)uval(d, K_temp_gpu); return OK;
}
typedef struct { U version; int margin; } Margin;
API int nvmlDeviceGetMarginTemperature(void *h, Margin *m) {
  DEV(nvmlDeviceGetMarginTemperature) NEED(m);
  if (m->version != (1u << 24 | sizeof(Margin))) return VERSION_MISMATCH;
  m->margin = (int)val(d, K_temp_margin); return OK;
}
#endif
API int nvmlDeviceGetTemperature(void *h, U sensor, U *out) {
  DEV(nvmlDeviceGetTemperature) NEED(out);
  if (sensor) return INVAL;
  *out = uval(d, K_temp_gpu); return OK;
}
API int nvmlDeviceGetTemperatureThreshold(void *h, U which, U *out) {
  DEV(nvmlDeviceGetTemperatureThreshold) NEED(out);
  static const int k[] = { K_temp_shutdown, K_temp_slowdown, K_temp_memmax, K_temp_max };
  if (which > 3) return NOTSUP;
  *out = uval(d, k[which]); return OK;
}
UINT(nvmlDeviceGetPowerUsage, power_mw)
UINT(nvmlDeviceGetPowerManagementLimit, power_limit_mw)
UINT(nvmlDeviceGetEnforcedPowerLimit, power_limit_mw)
UINT(nvmlDeviceGetPowerManagementDefaultLimit, power_default_mw)
API int nvmlDeviceGetPowerManagementLimitConstraints(void *h, U *lo, U *hi) {
  DEV(nvmlDeviceGetPowerManagementLimitConstraints) NEED(lo && hi);
  *lo = uval(d, K_power_min_mw); *hi = uval(d, K_power_max_mw); return OK;
}
U64(nvmlDeviceGetTotalEnergyConsumption, energy_mj)
API int nvmlDeviceGetClockInfo(void *h, U type, U *out) {
  DEV(nvmlDeviceGetClockInfo) NEED(out);
  if (type > 3) return INVAL;
  *out = uval(d, K_clk_graphics + (int)type); return OK;
}
API int nvmlDeviceGetMaxClockInfo(void *h, U type, U *out) {
  DEV(nvmlDeviceGetMaxClockInfo) NEED(out);
  if (type > 3) return INVAL;
  *out = uval(d, K_clkmax_graphics + (int)type); return OK;
}
U64(nvmlDeviceGetCurrentClocksThrottleReasons, event_reasons)
U64(nvmlDeviceGetSupportedClocksThrottleReasons, event_supported)
#ifndef FAKE_NVML_OLD
U64(nvmlDeviceGetCurrentClocksEventReasons, event_reasons)
U64(nvmlDeviceGetSupportedClocksEventReasons, event_supported)
#endif
API int nvmlDeviceGetViolationStatus(void *h, U policy, ULL out[2]) {
  DEV(nvmlDeviceGetViolationStatus) NEED(out);
  if (policy > 1) return NOTSUP;
  out[0] = wall_us() * 1000; out[1] = lval(d, policy ? K_viol_thermal_ns : K_viol_power_ns); return OK;
}
UINT(nvmlDeviceGetFanSpeed, fan_pct)
UINT(nvmlDeviceGetNumFans, num_fans)
API int nvmlDeviceGetFanSpeed_v2(void *h, U fan, U *out) {
  DEV(nvmlDeviceGetFanSpeed_v2) NEED(out);
  if (fan >= uval(d, K_num_fans)) return INVAL;
  *out = uval(d, K_fan_pct); return OK;
}

/* ------------------------------------------------------- buses and links */
API int nvmlDeviceGetPcieThroughput(void *h, U which, U *out) {
  DEV(nvmlDeviceGetPcieThroughput) NEED(out);
  if (which > 1) return INVAL;
  *out = uval(d, which ? K_pcie_rx_kbps : K_pcie_tx_kbps); return OK;
}
UINT(nvmlDeviceGetPcieReplayCounter, pcie_replay)
UINT(nvmlDeviceGetCurrPcieLinkGeneration, pcie_gen)
UINT(nvmlDeviceGetCurrPcieLinkWidth, pcie_width)
UINT(nvmlDeviceGetMaxPcieLinkGeneration, pcie_gen_max)
UINT(nvmlDeviceGetMaxPcieLinkWidth, pcie_width_max)
UINT(nvmlDeviceGetPcieSpeed, pcie_speed_mbps)
API int nvmlDeviceGetNvLinkState(void *h, U link, U *on) {
  DEV(nvmlDeviceGetNvLinkState) NEED(on);
  if (link >= uval(d, K_nvlink_count)) return uval(d, K_nvlink_count) ? INVAL : NOTSUP;
  *on = 1; return OK;
}
API int nvmlDeviceGetNvLinkVersion(void *h, U link, U *v) { DEV(nvmlDeviceGetNvLinkVersion) NEED(v); if (link >= uval(d, K_nvlink_count)) return NOTSUP; *v = uval(d, K_nvlink_version); return OK; }
API int nvmlDeviceGetNvLinkErrorCounter(void *h, U link, U kind, ULL *v) {
  DEV(nvmlDeviceGetNvLinkErrorCounter) NEED(v);
  if (link >= uval(d, K_nvlink_count)) return NOTSUP;
  static const int k[] = { K_nvlink_replay, K_nvlink_recovery, K_nvlink_crc, K_nvlink_crc };
  if (kind > 3) return INVAL;
  *v = lval(d, k[kind]); return OK;
}

/* ----------------------------------------------------- health and errors */
API int nvmlDeviceGetEccMode(void *h, U *cur, U *pend) { DEV(nvmlDeviceGetEccMode) NEED(cur && pend); *cur = *pend = uval(d, K_ecc_mode); return OK; }
API int nvmlDeviceGetTotalEccErrors(void *h, U type, U counter, ULL *out) {
  DEV(nvmlDeviceGetTotalEccErrors) NEED(out);
  if (type > 1 || counter > 1) return INVAL;
  static const int k[2][2] = { { K_ecc_corr_vol, K_ecc_corr_agg }, { K_ecc_unc_vol, K_ecc_unc_agg } };
  if (!uval(d, K_ecc_mode)) return NOTSUP;
  *out = lval(d, k[type][counter]); return OK;
}
API int nvmlDeviceGetMemoryErrorCounter(void *h, U type, U counter, U loc, ULL *out) {
  (void)loc;
  DEV(nvmlDeviceGetMemoryErrorCounter) NEED(out);
  if (!uval(d, K_ecc_mode)) return NOTSUP;
  *out = lval(d, type ? (counter ? K_ecc_unc_agg : K_ecc_unc_vol) : (counter ? K_ecc_corr_agg : K_ecc_corr_vol));
  return OK;
}
API int nvmlDeviceGetRemappedRows(void *h, U *cor, U *unc, U *pend, U *fail) {
  DEV(nvmlDeviceGetRemappedRows) NEED(cor && unc && pend && fail);
  *cor = uval(d, K_remap_corr); *unc = uval(d, K_remap_unc);
  *pend = uval(d, K_remap_pending); *fail = uval(d, K_remap_failure); return OK;
}
UINT(nvmlDeviceGetRetiredPagesPendingStatus, retired_pending)

/* --------------------------------------------------------------- engines */
#define CODEC(fn, key) API int fn(void *h, U *u, U *period) { DEV(fn) NEED(u && period); *u = uval(d, K_##key); *period = 167000; return OK; }
CODEC(nvmlDeviceGetEncoderUtilization, enc_util)
CODEC(nvmlDeviceGetDecoderUtilization, dec_util)
CODEC(nvmlDeviceGetJpgUtilization, jpg_util)
CODEC(nvmlDeviceGetOfaUtilization, ofa_util)

/* ------------------------------------------------------------- processes */
typedef struct { U pid; ULL mem; U gi, ci; } ProcInfo;
static int list_procs(const Dev *d, char kind, U *count, ProcInfo *out) {
  NEED(count);
  U have = 0, room = *count;
  for (int i = 0; i < d->nproc; i++) if (d->proc[i].kind == kind) have++;
  *count = have;
  if (!have) return OK;
  if (room < have || !out) return SMALL;
  U n = 0;
  for (int i = 0; i < d->nproc; i++)
    if (d->proc[i].kind == kind) out[n++] = (ProcInfo){ d->proc[i].pid, d->proc[i].mem, ~0u, ~0u };
  return OK;
}
/* The oldest form has no MIG ids; nvtop before 3.1 insists on it. */
typedef struct { U pid; ULL mem; } ProcInfoV1;
static int list_procs_v1(const Dev *d, char kind, U *count, ProcInfoV1 *out) {
  ProcInfo tmp[MAXPROC]; U n = MAXPROC;
  NEED(count);
  int rc = list_procs(d, kind, &n, tmp);
  if (rc) return rc;
  U room = *count; *count = n;
  if (!n) return OK;
  if (room < n || !out) return SMALL;
  for (U i = 0; i < n; i++) out[i] = (ProcInfoV1){ tmp[i].pid, tmp[i].mem };
  return OK;
}
API int nvmlDeviceGetComputeRunningProcesses(void *h, U *count, ProcInfoV1 *out) { DEV(nvmlDeviceGetComputeRunningProcesses) return list_procs_v1(d, 'C', count, out); }
API int nvmlDeviceGetGraphicsRunningProcesses(void *h, U *count, ProcInfoV1 *out) { DEV(nvmlDeviceGetGraphicsRunningProcesses) return list_procs_v1(d, 'G', count, out); }
#define PROCS(fn, kind) API int fn(void *h, U *count, ProcInfo *out) { DEV(fn) return list_procs(d, kind, count, out); }
PROCS(nvmlDeviceGetComputeRunningProcesses_v2, 'C')
PROCS(nvmlDeviceGetGraphicsRunningProcesses_v2, 'G')
#ifndef FAKE_NVML_OLD
PROCS(nvmlDeviceGetComputeRunningProcesses_v3, 'C')
PROCS(nvmlDeviceGetGraphicsRunningProcesses_v3, 'G')
PROCS(nvmlDeviceGetMPSComputeRunningProcesses_v3, 'M')
#endif
typedef struct { U pid; ULL ts; U sm, mem, enc, dec; } ProcUtil;
API int nvmlDeviceGetProcessUtilization(void *h, ProcUtil *out, U *count, ULL since) {
  DEV(nvmlDeviceGetProcessUtilization) NEED(count);
  ULL ts = wall_us();
  if (!d->nproc || since >= ts) { *count = 0; return NOTFOUND; }   /* as real NVML: no samples */
  U room = *count; *count = (U)d->nproc;
  if (!out || room < (U)d->nproc) return SMALL;
  for (int i = 0; i < d->nproc; i++)
    out[i] = (ProcUtil){ d->proc[i].pid, ts, d->proc[i].sm, d->proc[i].sm / 2, 0, 0 };
  return OK;
}

/* ---------------------------------------- batches: field values, samples */
typedef union { double d; U u; ULL ull; long long s; } Value;
typedef struct { U field, scope; long long ts, latency; int type, rc; Value v; } Field;
static void fill_field(const Dev *d, Field *f) {
  f->ts = (long long)wall_us(); f->latency = 0; f->rc = OK; f->type = 3; f->v.ull = 0;
  int who = d->parent >= 0 ? d->parent : d->idx;
  for (int i = nextra - 1; i >= 0; i--)
    if (!extra[i].kind && extra[i].gpu == who && extra[i].id == f->field) { f->rc = extra[i].err; f->v.ull = f->rc ? 0 : (ULL)eval_at(&extra[i].e, now_t()); return; }
  int k = -1;
  switch (f->field) {
    case 1: case 2: k = K_ecc_mode; break;
    case 3: k = K_ecc_corr_vol; break;   case 4: k = K_ecc_unc_vol; break;
    case 5: k = K_ecc_corr_agg; break;   case 6: k = K_ecc_unc_agg; break;
    case 29: k = K_retired_sbe; break;   case 30: k = K_retired_dbe; break;
    case 31: k = K_retired_pending; break;
    case 38: case 45: case 163: k = K_nvlink_crc; break;
    case 52: case 161: k = K_nvlink_replay; break;
    case 59: case 162: k = K_nvlink_recovery; break;
    case 74: k = K_viol_power_ns; break; case 75: k = K_viol_thermal_ns; break;
    case 82: k = K_temp_mem; f->type = 1; break;
    case 83: case 191: k = K_energy_mj; break;
    case 90: case 164: k = K_nvlink_speed_mbps; break;
    case 91: k = K_nvlink_count; break;
    case 94: k = K_pcie_replay; break;
    case 138: case 140: k = K_nvlink_tx_kib; break;
    case 139: case 141: k = K_nvlink_rx_kib; break;
    case 142: k = K_remap_corr; break;   case 143: k = K_remap_unc; break;
    case 144: k = K_remap_pending; break; case 145: k = K_remap_failure; break;
    case 185: case 186: k = K_power_mw; f->type = 1; break;
    case 187: k = K_power_min_mw; f->type = 1; break;
    case 188: k = K_power_max_mw; f->type = 1; break;
    case 189: k = K_power_default_mw; f->type = 1; break;
    case 190: case 192: k = K_power_limit_mw; f->type = 1; break;
    case 197: k = K_pcie_tx_bytes; break; case 198: k = K_pcie_rx_bytes; break;
    case 230: k = K_recovery_action; f->type = 1; break;
    default: f->rc = NOTSUP; return;
  }
  if (f->type == 1) f->v.u = uval(d, k); else f->v.ull = lval(d, k);
  U links = uval(d, K_nvlink_count);
  if (f->field >= 138 && f->field <= 141) {
    if (!links) f->rc = NOTSUP; else if (f->scope != ~0u) f->v.ull /= links;
  }
}
API int nvmlDeviceGetFieldValues(void *h, int n, Field *f) {
  DEV(nvmlDeviceGetFieldValues) NEED(f && n >= 0);
  for (int i = 0; i < n; i++) fill_field(d, &f[i]);
  return OK;
}
typedef struct { ULL ts; Value v; } Sample;
API int nvmlDeviceGetSamples(void *h, U kind, ULL since, int *type, U *count, Sample *out) {
  DEV(nvmlDeviceGetSamples) NEED(type && count);
  int k = kind == 0 ? K_power_mw : kind == 1 ? K_util_gpu : kind == 2 ? K_util_mem
        : kind == 3 ? K_enc_util : kind == 4 ? K_dec_util : kind == 5 ? K_clk_sm : -1;
  if (k < 0) return NOTSUP;
  *type = 1;
  double hz = val(d, K_samples_hz); if (hz <= 0) hz = 6;
  ULL step = (ULL)(1e6 / hz), now = wall_us() / step * step, oldest = now - step * 99;
  if (since < oldest) since = oldest - 1;
  U have = since >= now ? 0 : (U)((now - since + step - 1) / step);
  if (have > 100) have = 100;
  if (!have) { *count = 0; return NOTFOUND; }
  if (!out) { *count = have; return OK; }
  U n = *count < have ? *count : have;
  double t = now_t();
  for (U i = 0; i < n; i++) {
    ULL ts = now - step * (have - 1 - i);
    out[i].ts = ts; out[i].v.ull = 0;
    out[i].v.u = (U)(eval_at(&d->num[k], fmax(0, t - (double)(now - ts) / 1e6)) + 0.5);
  }
  *count = n; return OK;
}

/* ------------------------------------------------------------------- MIG */
API int nvmlDeviceGetMigMode(void *h, U *cur, U *pend) { DEV(nvmlDeviceGetMigMode) NEED(cur && pend); *cur = *pend = uval(d, K_mig); return OK; }
API int nvmlDeviceGetMaxMigDeviceCount(void *h, U *n) { DEV(nvmlDeviceGetMaxMigDeviceCount) NEED(n); *n = uval(d, K_mig) ? MAXMIG : 0; return OK; }
API int nvmlDeviceGetMigDeviceHandleByIndex(void *h, U i, void **out) {
  DEV(nvmlDeviceGetMigDeviceHandleByIndex) NEED(out);
  if (d->parent >= 0 || !uval(d, K_mig)) return INVAL;
  if (i >= uval(d, K_mig_count) || i >= MAXMIG) return NOTFOUND;
  *out = &migdev[d->idx * MAXMIG + (int)i]; return OK;
}
API int nvmlDeviceIsMigDeviceHandle(void *h, U *out) { DEV(nvmlDeviceIsMigDeviceHandle) NEED(out); *out = d->parent >= 0; return OK; }
API int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(void *h, void **out) { DEV(nvmlDeviceGetDeviceHandleFromMigDeviceHandle) NEED(out); if (d->parent < 0) return INVAL; *out = &gpu[d->parent]; return OK; }
API int nvmlDeviceGetGpuInstanceId(void *h, U *out) { DEV(nvmlDeviceGetGpuInstanceId) NEED(out); if (d->parent < 0) return INVAL; *out = (U)d->mig_slot + 7; return OK; }
API int nvmlDeviceGetComputeInstanceId(void *h, U *out) { DEV(nvmlDeviceGetComputeInstanceId) NEED(out); if (d->parent < 0) return INVAL; *out = 0; return OK; }
typedef struct { U sm, copy, dec, enc, jpeg, ofa, gi_slices, ci_slices; ULL mem_mb; } Attr;
API int nvmlDeviceGetAttributes_v2(void *h, Attr *a) {
  DEV(nvmlDeviceGetAttributes_v2) NEED(a);
  if (d->parent < 0) return NOTSUP;
  *a = (Attr){ 16, 1, 1, 0, 1, 0, 1, 1, lval(d, K_mem_total) >> 20 }; return OK;
}

/* ---------------------------------------------------- events (Xid codes) */
typedef struct { void *dev; ULL type, data; U gi, ci; } Event;
typedef struct { ULL mask[MAXGPU]; } EventSet;
API int nvmlEventSetCreate(EventSet **s) { SYS(nvmlEventSetCreate) NEED(s); *s = calloc(1, sizeof **s); return *s ? OK : 20; }
API int nvmlEventSetFree(EventSet *s) { SYS(nvmlEventSetFree) free(s); return OK; }
API int nvmlDeviceGetSupportedEventTypes(void *h, ULL *m) { DEV(nvmlDeviceGetSupportedEventTypes) NEED(m); *m = 0x1f; return OK; }
API int nvmlDeviceRegisterEvents(void *h, ULL mask, EventSet *s) { DEV(nvmlDeviceRegisterEvents) NEED(s); if (d->parent >= 0) return NOTSUP; s->mask[d->idx] |= mask; return OK; }
API int nvmlEventSetWait_v2(EventSet *s, Event *e, U timeout_ms) {
  SYS(nvmlEventSetWait_v2) NEED(s && e);
  double end = mono() + timeout_ms / 1000.0;
  for (;;) {
    pthread_mutex_lock(&mu);
    load_script();
    double t = now_t();
    for (int i = 0; i < ngpu; i++)
      for (int x = 0; x < gpu[i].nxid; x++)
        if ((s->mask[i] & gpu[i].xid[x].type) && !gpu[i].xid[x].taken && gpu[i].xid[x].at <= t) {
          gpu[i].xid[x].taken = 1;
          *e = (Event){ &gpu[i], gpu[i].xid[x].type, gpu[i].xid[x].code, ~0u, ~0u };
          pthread_mutex_unlock(&mu); return OK;
        }
    pthread_mutex_unlock(&mu);
    double left = end - mono();
    if (left <= 0) return TIMEOUT;
    usleep((useconds_t)(fmin(left, 0.05) * 1e6) + 1);
  }
}

#ifndef FAKE_NVML_OLD
typedef struct { U version, fan, speed; } FanRpm;
API int nvmlDeviceGetFanSpeedRPM(void *h, FanRpm *f) {
  DEV(nvmlDeviceGetFanSpeedRPM) NEED(f);
  if (f->version != (1u << 24 | sizeof(FanRpm))) return VERSION_MISMATCH;
  f->speed = uval(d, K_fan_rpm); return OK;
}
/* --------------------------------------------------------- GPM (Hopper+) */
typedef struct { int gpu; double t; } GpmSample;
typedef struct { U id; int rc; double v; const char *shortn, *longn, *unit; } GpmMetric;
typedef struct { U version, n; GpmSample *a, *b; GpmMetric m[]; } GpmGet;
API int nvmlGpmQueryDeviceSupport(void *h, U out[2]) { DEV(nvmlGpmQueryDeviceSupport) NEED(out); out[1] = uval(d, K_gpm) && d->parent < 0; return OK; }
API int nvmlGpmSampleAlloc(GpmSample **s) { SYS(nvmlGpmSampleAlloc) NEED(s); *s = calloc(1, sizeof **s); return *s ? OK : 20; }
API int nvmlGpmSampleFree(GpmSample *s) { SYS(nvmlGpmSampleFree) free(s); return OK; }
API int nvmlGpmSampleGet(void *h, GpmSample *s) {
  DEV(nvmlGpmSampleGet) NEED(s);
  if (!uval(d, K_gpm)) return NOTSUP;
  s->gpu = d->idx; s->t = now_t(); return OK;
}
API int nvmlGpmMigSampleGet(void *h, U gi, GpmSample *s) {
  DEV(nvmlGpmMigSampleGet) NEED(s);
  if (!uval(d, K_gpm)) return NOTSUP;
  if (d->parent >= 0 || gi < 7 || gi >= 7 + uval(d, K_mig_count)) return INVAL;
  s->gpu = d->idx; s->t = now_t(); return OK;
}
API int nvmlGpmMetricsGet(GpmGet *g) {
  SYS(nvmlGpmMetricsGet) NEED(g && g->a && g->b);
  if (g->version != 1) return VERSION_MISMATCH;
  int who = g->b->gpu;
  double t = (g->a->t + g->b->t) / 2, util = eval_at(&gpu[who].num[K_util_gpu], t);
  for (U i = 0; i < g->n; i++) {
    GpmMetric *m = &g->m[i];
    m->rc = OK; m->shortn = m->longn = "fake"; m->unit = "%";
    int hit = 0;
    for (int x = nextra - 1; x >= 0 && !hit; x--)
      if (extra[x].kind && extra[x].gpu == who && extra[x].id == m->id) { m->v = eval_at(&extra[x].e, t); hit = 1; }
    if (hit) continue;
    switch (m->id) {
      case 1: m->v = util; break;          case 2: m->v = util * 0.9; break;
      case 3: m->v = util * 0.4; break;    case 5: case 7: m->v = util * 0.5; break;
      case 10: m->v = eval_at(&gpu[who].num[K_util_mem], t); break;
      case 11: m->v = 0; break;            case 12: m->v = util * 0.1; break;
      case 13: m->v = util * 0.05; break;
      case 20: m->v = eval_at(&gpu[who].num[K_pcie_tx_kbps], t) / 1024; m->unit = "MiB/s"; break;
      case 21: m->v = eval_at(&gpu[who].num[K_pcie_rx_kbps], t) / 1024; m->unit = "MiB/s"; break;
      case 60: case 61: m->v = 2000; m->unit = "MiB/s"; break;
      default: m->rc = NOTSUP;
    }
  }
  return OK;
}
#endif
