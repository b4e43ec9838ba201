.PHONY: demo test bench
demo test bench:
	./dev $@
