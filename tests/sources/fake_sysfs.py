#!/usr/bin/env python3
"""Write a fake /sys with AMD and Intel GPUs, for machines without any.

    python fake_sysfs.py ROOT              # 2 amdgpu (MI210-like), 1 i915, 1 xe card
    python fake_sysfs.py ROOT --amd 8      # only that many amdgpu cards
    python fake_sysfs.py ROOT --set card0/device/gpu_busy_percent=91

A reader that takes its sysfs root as a setting reads ROOT directly. Programs that hard-code /sys can be shown
ROOT in a private mount namespace (Linux, root):

    unshare -m sh -c 'mount --bind ROOT /sys && exec rocm-smi --showuse --json'

The KFD topology below is what librocm_smi insists on before it will start.
"""

import argparse
import os
import shutil

AMD = {
    "vendor": "0x1002",
    "device": "0x740f",
    "subsystem_vendor": "0x1002",
    "subsystem_device": "0x0c34",
    "class": "0x038000",
    "revision": "0x02",
    "vbios_version": "113-D67301V-073",
    "product_name": "AMD Instinct MI210",
    "gpu_busy_percent": 37,
    "mem_busy_percent": 12,
    "mem_info_vram_total": 68702699520,
    "mem_info_vram_used": 10737418240,
    "mem_info_vis_vram_total": 68702699520,
    "mem_info_vis_vram_used": 10737418240,
    "mem_info_gtt_total": 67522506752,
    "mem_info_gtt_used": 12345678,
    "mem_info_vram_vendor": "samsung",
    "pp_dpm_sclk": "0: 500Mhz\n1: 1700Mhz *",
    "pp_dpm_mclk": "0: 400Mhz\n1: 1600Mhz *",
    "pp_dpm_pcie": "0: 16.0GT/s, x16 *",
    "power_dpm_force_performance_level": "auto",
    "current_link_speed": "16.0 GT/s PCIe",
    "current_link_width": 16,
    "max_link_speed": "16.0 GT/s PCIe",
    "max_link_width": 16,
    "pcie_replay_count": 0,
    "numa_node": 0,
    "ras/umc_err_count": "ue: 0\nce: 2",
    "power_state": "D0",
    "power/runtime_status": "active",
}
AMD_HWMON = {
    "name": "amdgpu",
    "temp1_input": 41000,
    "temp1_label": "edge",
    "temp1_crit": 100000,
    "temp2_input": 55000,
    "temp2_label": "junction",
    "temp2_crit": 105000,
    "temp2_emergency": 110000,
    "temp3_input": 61000,
    "temp3_label": "mem",
    "temp3_crit": 95000,
    "power1_average": 181000000,
    "power1_label": "PPT",
    "power1_cap": 300000000,
    "power1_cap_max": 300000000,
    "freq1_input": 1700000000,
    "freq1_label": "sclk",
    "freq2_input": 1600000000,
    "freq2_label": "mclk",
    "in0_input": 787,
    "in0_label": "vddgfx",
    "fan1_input": 0,
    "pwm1": 0,
    "pwm1_max": 255,
}
I915_HWMON = {
    "name": "i915",
    "energy1_input": 123456789,
    "power1_max": 190000000,
    "in0_input": 900,
    "fan1_input": 1200,
}
XE_HWMON = {
    "name": "xe",
    "energy1_input": 223456789,
    "energy1_label": "card",
    "energy2_input": 12345678,
    "energy2_label": "pkg",
    "power1_max": 190000000,
    "temp2_input": 52000,
    "temp2_label": "pkg",
    "temp3_input": 60000,
    "temp3_label": "vram",
    "fan1_input": 900,
}
I915_CARD = {
    "gt_cur_freq_mhz": 2050,
    "gt_act_freq_mhz": 2000,
    "gt_max_freq_mhz": 2400,
    "lmem_total_bytes": 17179869184,
    "lmem_avail_bytes": 16106127360,
    "gt/gt0/rc6_residency_ms": 123456,
    "gt/gt0/throttle_reason_status": 0,
}
XE_DEVICE = {
    "tile0/gt0/freq0/cur_freq": 2400,
    "tile0/gt0/freq0/act_freq": 2350,
    "tile0/gt0/freq0/max_freq": 2850,
    "tile0/gt0/freq0/throttle/status": 0,
    "tile0/gt0/gtidle/idle_residency_ms": 5555,
}
KFD = (
    "cpu_cores_count 0\nsimd_count 416\nmem_banks_count 1\ncaches_count 120\n"
    "io_links_count 1\np2p_links_count 0\nmax_waves_per_simd 8\nwave_front_size 64\n"
    "array_count 8\nsimd_arrays_per_engine 1\ncu_per_simd_array 13\nsimd_per_cu 4\n"
    "gfx_target_version 90010\nvendor_id 4098\ndevice_id 29711\nlocation_id {loc}\n"
    "domain 0\ndrm_render_minor {minor}\nhive_id 0\nnum_sdma_engines 5\n"
    "num_cp_queues 24\nmax_engine_clk_fcompute 1700\nlocal_mem_size 0\nfw_version 68\n"
    "sdma_fw_version 8\nunique_id {uid}\nnum_xcc 1\nmax_engine_clk_ccompute 2450"
)


class Tree:
    def __init__(self, root):
        self.root = root

    def put(self, path, value):
        full = os.path.join(self.root, path)
        os.makedirs(os.path.dirname(full), exist_ok=True)
        with open(full, "w") as f:
            f.write(f"{value}\n")

    def link(self, path, target):
        """path -> target, both inside the tree, stored as a relative symlink."""
        full = os.path.join(self.root, path)
        os.makedirs(os.path.dirname(full), exist_ok=True)
        os.symlink(os.path.relpath(os.path.join(self.root, target), os.path.dirname(full)), full)

    def pci_gpu(self, i, bdf, driver, device, hwmon):
        dev = f"devices/pci0000:00/{bdf}"
        for k, v in device.items():
            self.put(f"{dev}/{k}", v)
        self.put(f"{dev}/uevent", f"DRIVER={driver}\nPCI_SLOT_NAME={bdf}")
        self.put(f"bus/pci/drivers/{driver}/.keep", "")
        self.link(f"{dev}/driver", f"bus/pci/drivers/{driver}")
        self.link(f"bus/pci/devices/{bdf}", dev)
        mon = f"{dev}/hwmon/hwmon{i + 3}"
        for k, v in hwmon.items():
            self.put(f"{mon}/{k}", v)
        self.link(f"{mon}/device", dev)
        self.link(f"class/hwmon/hwmon{i + 3}", mon)
        self.put(f"{dev}/drm/card{i}/dev", f"226:{i}")
        self.put(f"{dev}/drm/renderD{128 + i}/dev", f"226:{128 + i}")
        self.link(f"{dev}/drm/card{i}/device", dev)
        self.link(f"{dev}/drm/renderD{128 + i}/device", dev)
        self.link(f"class/drm/card{i}", f"{dev}/drm/card{i}")
        self.link(f"class/drm/renderD{128 + i}", f"{dev}/drm/renderD{128 + i}")
        return dev

    def kfd_node(self, n, loc, minor, uid):
        base = f"class/kfd/kfd/topology/nodes/{n}"
        self.put(f"{base}/gpu_id", 1233 + n)
        self.put(f"{base}/name", "gfx90a")
        self.put(f"{base}/properties", KFD.format(loc=loc, minor=minor, uid=uid))
        self.put(f"{base}/io_links/0/properties", f"type 2\nnode_from {n}\nnode_to 0\nweight 20\nflags 1")


def build(root, amd, intel):
    shutil.rmtree(root, ignore_errors=True)
    t = Tree(root)
    t.put("module/amdgpu/initstate", "live")
    t.put("class/drm/version", "drm 1.1.0 20060810")
    t.put("class/kfd/kfd/topology/system_properties", "platform_oem 0")
    t.put("class/kfd/kfd/topology/nodes/0/gpu_id", 0)
    t.put("class/kfd/kfd/topology/nodes/0/name", "")
    t.put(
        "class/kfd/kfd/topology/nodes/0/properties",
        "cpu_cores_count 64\nsimd_count 0\nlocation_id 0\ndomain 0\nvendor_id 0\ndevice_id 0\n"
        "drm_render_minor 0\nhive_id 0\nunique_id 0",
    )
    os.makedirs(os.path.join(root, "class/kfd/kfd/topology/nodes/0/io_links"), exist_ok=True)
    for i in range(amd):
        bus = 0x43 + 0x10 * i
        uid = 0x719D230578348E80 + i
        t.pci_gpu(
            i,
            f"0000:{bus:02x}:00.0",
            "amdgpu",
            AMD | {"gpu_busy_percent": 37 + i, "unique_id": f"{uid:016x}"},
            AMD_HWMON,
        )
        t.kfd_node(i + 1, bus << 8, 128 + i, uid)
    if intel:
        i = amd
        dev = t.pci_gpu(
            i,
            "0000:03:00.0",
            "i915",
            {"vendor": "0x8086", "device": "0x56a0", "class": "0x030000"},
            I915_HWMON,
        )
        for k, v in I915_CARD.items():
            t.put(f"{dev}/drm/card{i}/{k}", v)
        t.pci_gpu(
            i + 1,
            "0000:04:00.0",
            "xe",
            {"vendor": "0x8086", "device": "0xe20b", "class": "0x030000"} | XE_DEVICE,
            XE_HWMON,
        )


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("root")
    p.add_argument("--amd", type=int, help="number of amdgpu cards, without Intel ones")
    p.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="card0/device/FILE=VALUE",
        help="change one file of an existing tree",
    )
    a = p.parse_args()
    if a.set:
        for item in a.set:
            path, _, value = item.partition("=")
            with open(os.path.join(a.root, "class/drm", path), "w") as f:
                f.write(value + "\n")
    else:
        build(a.root, 2 if a.amd is None else a.amd, a.amd is None)


if __name__ == "__main__":
    main()
