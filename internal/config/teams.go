package config

import (
	"strconv"
	"strings"

	"github.com/cay-run/cay"
)

// Teams are the limits of teams that have none of their own; 0 and an empty text
// are no bound. A rate is how many requests a second, with ":" and how many at
// once after a rest behind it where that is another number.
type Teams struct {
	TeamSandboxes     int    `yaml:"teamSandboxes"`
	TeamCPUs          int    `yaml:"teamCPUs"`
	TeamMemoryMB      int    `yaml:"teamMemoryMB"`
	TeamDiskMB        int    `yaml:"teamDiskMB"`
	TeamTemplates     int    `yaml:"teamTemplates"`
	TeamSnapshots     string `yaml:"teamSnapshots"`
	TeamBuilds        int    `yaml:"teamBuilds"`
	TeamVolumes       int    `yaml:"teamVolumes"`
	TeamVolumeMB      int    `yaml:"teamVolumeMB"`
	TeamModelTokens   int64  `yaml:"teamModelTokens"`
	TeamModelRequests int    `yaml:"teamModelRequests"`
	TeamCreateRate    string `yaml:"teamCreateRate"`
	TeamWriteRate     string `yaml:"teamWriteRate"`
	TeamReadRate      string `yaml:"teamReadRate"`
}

var teamVariables = []Variable{
	{"CAY_TEAM_SANDBOXES", "teamSandboxes", "how many sandboxes a team may have running at once [no limit]",
		func(c *Config, v string) (err error) { c.TeamSandboxes, err = strconv.Atoi(v); return err }},
	{"CAY_TEAM_CPUS", "teamCPUs", "how many processors a team's running sandboxes may be promised in all [no limit]",
		func(c *Config, v string) (err error) { c.TeamCPUs, err = strconv.Atoi(v); return err }},
	{"CAY_TEAM_MEMORY", "teamMemoryMB", "how much memory, in MB, a team's running sandboxes may be promised in all [no limit]",
		func(c *Config, v string) (err error) { c.TeamMemoryMB, err = strconv.Atoi(v); return err }},
	{"CAY_TEAM_DISK", "teamDiskMB", "how much disk, in MB, a team's running sandboxes may be promised in all [no limit]",
		func(c *Config, v string) (err error) { c.TeamDiskMB, err = strconv.Atoi(v); return err }},
	{"CAY_TEAM_TEMPLATES", "teamTemplates", "how many templates a team may have of its own [no limit]",
		func(c *Config, v string) (err error) { c.TeamTemplates, err = strconv.Atoi(v); return err }},
	{"CAY_TEAM_SNAPSHOTS", "teamSnapshots", "disk for a team's paused sandboxes, checkpoints and snapshots, e.g. 100GiB [no limit]",
		func(c *Config, v string) error { c.TeamSnapshots = v; return nil }},
	{"CAY_TEAM_BUILDS", "teamBuilds", "how many builds a team may have running or waiting at once, 0 for no limit [20]",
		func(c *Config, v string) (err error) { c.TeamBuilds, err = strconv.Atoi(v); return err }},
	{"CAY_TEAM_VOLUMES", "teamVolumes", "how many volumes, with their snapshots, a team may have [no limit]",
		func(c *Config, v string) (err error) { c.TeamVolumes, err = strconv.Atoi(v); return err }},
	{"CAY_TEAM_VOLUME_SIZE", "teamVolumeMB", "how large, in MB, a team's volumes may be in all, full or not [no limit]",
		func(c *Config, v string) (err error) { c.TeamVolumeMB, err = strconv.Atoi(v); return err }},
	{"CAY_TEAM_MODEL_TOKENS", "teamModelTokens", "how many tokens each sandbox of a team may exchange with models in its life [no limit]",
		func(c *Config, v string) (err error) {
			c.TeamModelTokens, err = strconv.ParseInt(v, 10, 64)
			return err
		}},
	{"CAY_TEAM_MODEL_REQUESTS", "teamModelRequests", "how many requests to models each sandbox of a team may have under way, 0 for no limit [16]",
		func(c *Config, v string) (err error) { c.TeamModelRequests, err = strconv.Atoi(v); return err }},
	{"CAY_TEAM_CREATE_RATE", "teamCreateRate", "creates, forks and resumes a second of a team, e.g. 5, or 5:20 for 20 at once after a rest [no limit]",
		func(c *Config, v string) error { c.TeamCreateRate = v; return nil }},
	{"CAY_TEAM_WRITE_RATE", "teamWriteRate", "the same for other requests that change something [no limit]",
		func(c *Config, v string) error { c.TeamWriteRate = v; return nil }},
	{"CAY_TEAM_READ_RATE", "teamReadRate", "the same for requests that only read [no limit]",
		func(c *Config, v string) error { c.TeamReadRate = v; return nil }},
}

// TeamLimits are the limits of teams that have none of their own.
func (c Config) TeamLimits() (cay.TeamLimits, error) {
	out := cay.TeamLimits{
		cay.LimitSandboxes: int64(c.TeamSandboxes), cay.LimitCPUs: int64(c.TeamCPUs), cay.LimitMemory: int64(c.TeamMemoryMB),
		cay.LimitDisk: int64(c.TeamDiskMB), cay.LimitTemplates: int64(c.TeamTemplates), cay.LimitBuilds: int64(c.TeamBuilds),
		cay.LimitVolumes: int64(c.TeamVolumes), cay.LimitVolumeMB: int64(c.TeamVolumeMB),
		cay.LimitModelTokens: c.TeamModelTokens, cay.LimitModelRequests: int64(c.TeamModelRequests),
	}
	if c.TeamSnapshots != "" && c.TeamSnapshots != "0" {
		bytes, ok := Size(c.TeamSnapshots)
		if !ok {
			return nil, cay.Errorf(cay.Invalid, "team snapshots %q is not a size such as 512MiB or 100GiB", c.TeamSnapshots)
		}
		out[cay.LimitSnapshots] = bytes
	}
	for _, one := range []struct {
		what, text  string
		rate, burst cay.Limit
	}{
		{"create", c.TeamCreateRate, cay.LimitCreates, cay.LimitCreateBurst},
		{"write", c.TeamWriteRate, cay.LimitWrites, cay.LimitWriteBurst},
		{"read", c.TeamReadRate, cay.LimitReads, cay.LimitReadBurst},
	} {
		if one.text == "" {
			continue
		}
		rate, burst, both := strings.Cut(one.text, ":")
		r, e1 := strconv.ParseInt(rate, 10, 64)
		b, e2 := int64(0), error(nil)
		if both {
			b, e2 = strconv.ParseInt(burst, 10, 64)
		}
		if e1 != nil || e2 != nil {
			return nil, cay.Errorf(cay.Invalid, "team %s rate %q is not a number such as 5, or 5:20", one.what, one.text)
		}
		out[one.rate], out[one.burst] = r, b
	}
	if out.Check() != nil {
		return nil, cay.Errorf(cay.Invalid, "a team's limits cannot be below 0, which means none")
	}
	return out, nil
}
