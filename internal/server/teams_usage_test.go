package server_test

import "maps"

func init() {
	maps.Copy(bodies, map[string]string{
		"createBudget":   `{"meter":"creates","limit":"5","period":"once"}`,
		"setPrices":      `{"currency":"EUR","prices":{"creates":"1"}}`,
		"setUsageLabels": `{"labels":["theirs"]}`,
	})
}
