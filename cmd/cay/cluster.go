package main

import (
	"fmt"

	"github.com/cay-run/cay/internal/operator"
)

type clusterCmd struct {
	Import clusterImportCmd `cmd:"" help:"Move the records of this machine into PostgreSQL."`
}

type clusterImportCmd struct{}

// Help says how.
func (clusterImportCmd) Help() string {
	return "On the server's machine, as root, with no server running, and with CAY_DATABASE_URL as the server will have it. The database must " +
		"have no records. All are copied or none; the copy is read back and compared before it counts. The SQLite file stays, as " +
		"cay.db.imported. Keys, snapshots, images and volumes stay in the data directory."
}

func (clusterImportCmd) Run(a *app) error {
	cfg, err := a.config()
	if err != nil {
		return err
	}
	copied, err := operator.Import(a.ctx, cfg)
	if err != nil {
		return err
	}
	if a.json {
		return a.printJSON(copied)
	}
	t := table{header: []string{"TABLE", "RECORDS"}}
	sum := int64(0)
	for _, c := range copied {
		sum += c.Rows
		if c.Rows > 0 {
			t.add(c.Table, fmt.Sprint(c.Rows))
		}
	}
	t.print(a.out, width(a.out))
	fmt.Fprintf(a.err, "  %d records are in PostgreSQL; start the server: cay up\n", sum)
	return nil
}
