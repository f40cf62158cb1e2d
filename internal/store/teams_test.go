package store

import (
	"slices"
	"testing"
)

// TestTablesOfTeams holds the lists of what goes with a team to the schema: a
// new table of teams' rows must be in one of them.
func TestTablesOfTeams(t *testing.T) {
	path := t.TempDir() + "/cay.db"
	s, err := Open(t.Context(), path, noSeal{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	rows, err := s.reader.QueryContext(t.Context(), `SELECT m.name FROM sqlite_master m, pragma_table_info(m.name) c
		WHERE m.type = 'table' AND c.name IN ('team', 'team_id')`)
	names, err := collect(rows, err, func(row scanner) (name string, err error) {
		err = row.Scan(&name)
		return name, err
	})
	if err != nil || len(names) < 10 {
		t.Fatal(names, err)
	}
	listed := slices.Concat(clearedTables, keptTables)
	for _, name := range names {
		if !slices.Contains(listed, name) {
			t.Errorf("%s has rows of teams: name it in clearedTables or keptTables of teams.go, which say what becomes of them when a team is removed", name)
		}
	}
	for _, name := range listed {
		if !slices.Contains(names, name) {
			t.Errorf("there is no table %s with rows of teams", name)
		}
	}
}

type noSeal struct{}

func (noSeal) Seal(plain []byte, _ string) string            { return string(plain) }
func (noSeal) Open(text, _ string) (plain []byte, err error) { return []byte(text), nil }
