-- 0.5 % of the parts: 5.4 % by a word of their name, a tenth of these by their size.
SELECT n_name, sum(l_extendedprice * (1 - l_discount) - ps_supplycost * l_quantity) AS profit
FROM part, lineitem, supplier, partsupp, orders, nation
WHERE p_name LIKE '%green%'
    AND p_size <= 5
    AND l_partkey = p_partkey
    AND s_suppkey = l_suppkey
    AND ps_suppkey = l_suppkey
    AND ps_partkey = l_partkey
    AND o_orderkey = l_orderkey
    AND o_orderdate >= '1995-01-01'
    AND n_nationkey = s_nationkey
GROUP BY n_name
ORDER BY n_name
