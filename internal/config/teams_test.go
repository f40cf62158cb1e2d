package config

import (
	"reflect"
	"testing"

	"github.com/cay-run/cay"
)

func TestTeamLimits(t *testing.T) {
	c, err := Load([]string{
		"CAY_TEAM_SANDBOXES=5", "CAY_TEAM_CPUS=8", "CAY_TEAM_MEMORY=1024", "CAY_TEAM_DISK=2048", "CAY_TEAM_TEMPLATES=3",
		"CAY_TEAM_SNAPSHOTS=100GiB", "CAY_TEAM_BUILDS=0", "CAY_TEAM_CREATE_RATE=5:20", "CAY_TEAM_READ_RATE=100",
		"CAY_TEAM_VOLUMES=7", "CAY_TEAM_VOLUME_SIZE=4096",
	})
	if err != nil {
		t.Fatal(err)
	}
	got, err := c.TeamLimits()
	want := cay.TeamLimits{
		cay.LimitSandboxes: 5, cay.LimitCPUs: 8, cay.LimitMemory: 1024, cay.LimitDisk: 2048, cay.LimitTemplates: 3,
		cay.LimitSnapshots: 100 << 30, cay.LimitBuilds: 0, cay.LimitCreates: 5, cay.LimitCreateBurst: 20,
		cay.LimitReads: 100, cay.LimitReadBurst: 0,
		cay.LimitVolumes: 7, cay.LimitVolumeMB: 4096,
		cay.LimitModelTokens: 0, cay.LimitModelRequests: 16,
	}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("the limits are %v, %v, want %v", got, err, want)
	}
	for _, wrong := range []string{
		"CAY_TEAM_SANDBOXES=-1", "CAY_TEAM_SNAPSHOTS=much", "CAY_TEAM_BUILDS=x", "CAY_TEAM_READ_RATE=5/s",
		"CAY_TEAM_READ_RATE=5:", "CAY_TEAM_WRITE_RATE=-5", "CAY_TEAM_CREATE_RATE=:5",
	} {
		if _, err := Load([]string{wrong}); cay.KindOf(err) != cay.Invalid {
			t.Errorf("%s: %v", wrong, err)
		}
	}
}
